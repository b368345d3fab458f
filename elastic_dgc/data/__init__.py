"""What the model is trained on: the order of the samples, the sources they come from, prefetching, and their audit."""
