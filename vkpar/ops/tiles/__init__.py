"""What matrix products are made of: kernels, tiles, parts, and what follows them."""
