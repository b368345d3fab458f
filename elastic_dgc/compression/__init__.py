"""Deep Gradient Compression (Lin et al., ICLR 2018) in pure torch: no process group, no Ray, no I/O."""
