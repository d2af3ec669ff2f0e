"""The command line: one file a command. Nothing here computes; elsewhere only the build of the kernels prints."""
