"""Answering questions by a part of a text."""
