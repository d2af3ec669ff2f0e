"""Parts that only the bundled models have."""
