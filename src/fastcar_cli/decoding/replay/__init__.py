"""Replay: rule, scores, controller of a ratio."""
