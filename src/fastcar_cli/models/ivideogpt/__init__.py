"""iVideoGPT: network, tokenizer, checkpoint."""
