"""Vocabulary and physics of the bundled models' worlds, as far as inference needs them."""
