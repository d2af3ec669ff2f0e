"""The command line: one file a command. Nothing here computes, nothing elsewhere prints."""
