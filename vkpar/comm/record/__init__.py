"""A schedule as command buffers; nothing here submits."""
