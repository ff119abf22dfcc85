"""Learned masks."""
