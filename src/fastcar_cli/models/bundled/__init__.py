"""Parts of the bundled models alone."""
