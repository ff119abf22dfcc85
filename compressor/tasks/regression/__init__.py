"""Regression: a number for a text, or for a pair of texts."""
