"""Cosmos-Predict1: network, tokenizer, checkpoint."""
