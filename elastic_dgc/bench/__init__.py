"""Benchmarks that users run on their own machines: what compression costs here, and what pays on this network."""
