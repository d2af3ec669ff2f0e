"""Profiles the engine: the time of each module, and what replay and drafts can save."""
