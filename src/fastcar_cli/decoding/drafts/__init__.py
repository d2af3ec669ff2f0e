"""Draft tokens and the draft length."""
