"""Measuring around the engine: where time goes, what replay buys, plots."""
