"""Compiled kernels of the decode step, asked for by `--kernels`."""
