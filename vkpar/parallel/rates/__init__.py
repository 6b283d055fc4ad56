"""What devices and links are measured at, and kept of that."""
