"""Files, checked JSON, signals, locks, limits, errors."""
