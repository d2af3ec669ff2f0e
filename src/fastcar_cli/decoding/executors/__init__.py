"""Executors of decode passes: plain torch, native kernels, CUDA graph."""
