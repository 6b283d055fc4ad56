"""Arrays: memory on a device with a shape and a dtype, and how it travels to the host and back."""
