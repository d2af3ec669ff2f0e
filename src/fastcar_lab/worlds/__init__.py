"""The synthetic worlds that the bundled models draw."""
