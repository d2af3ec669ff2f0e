"""Draft tokens and their number."""
