"""Formats of weights, the layers that hold them, and files of tensors."""
