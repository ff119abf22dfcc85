"""Summarization of texts with an encoder-decoder model."""
