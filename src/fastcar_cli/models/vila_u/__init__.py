"""VILA-U: network, tokenizer, checkpoint; the bundled text-to-video models share its network."""
