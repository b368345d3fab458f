"""Image classification networks, found by name, and the plain files that hold their weights."""
