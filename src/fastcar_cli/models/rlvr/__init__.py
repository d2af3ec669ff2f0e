"""RLVR-World: network, tokenizers, checkpoint."""
