"""Arrays that are made, gathered and put together."""
