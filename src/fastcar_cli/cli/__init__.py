"""The command line: one file per command. Nothing here computes; of the other folders only the build prints."""
