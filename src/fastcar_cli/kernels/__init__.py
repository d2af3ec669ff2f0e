"""Compiled kernels of the decode step: `cpu` for `--kernels numba`, `gpu` for the CUDA graph."""
