"""The algorithms, a short file each, and the table of them."""
