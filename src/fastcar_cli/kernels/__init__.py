"""Kernels of the decode step: `native` for the CPU, `gpu` for the CUDA graph."""
