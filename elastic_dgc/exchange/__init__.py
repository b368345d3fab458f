"""How bytes travel between workers. Knows nothing of gradients: it moves payloads under keys, in checked frames."""
