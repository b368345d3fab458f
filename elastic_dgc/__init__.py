"""Elastic data-parallel training with Deep Gradient Compression on Ray."""
