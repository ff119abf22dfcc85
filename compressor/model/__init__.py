"""Checkpoints: opening and saving them, their architectures, and removing units from a model."""
