"""Measuring around the engine: where time goes, what replay and drafts can save."""
