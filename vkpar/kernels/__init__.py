"""The user's own kernels, and arrays in pieces that these can bind."""
