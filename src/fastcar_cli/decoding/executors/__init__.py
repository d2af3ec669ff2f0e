"""Who runs the passes of a decode: plain torch, native kernels, CUDA graph."""
