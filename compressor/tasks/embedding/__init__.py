"""Embedding of texts as vectors that are near where their meanings are."""
