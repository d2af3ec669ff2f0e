"""Kernels of the decode step: `native` for CPUs (C++), `gpu` for the CUDA graph (Triton)."""
