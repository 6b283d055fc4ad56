"""What the machine has: drivers, physical devices, selectors, the one instance."""
