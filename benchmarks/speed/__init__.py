"""Throughput of artifacts compared with other programs that serve the same model."""
