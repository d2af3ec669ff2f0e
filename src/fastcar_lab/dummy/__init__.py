"""Checkpoints with random weights in the formats of released models, for tests and for measuring."""
