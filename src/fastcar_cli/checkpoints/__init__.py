"""Finds, checks and reads the files of a model: names, the hub, formats of checkpoints, weights, memory."""
