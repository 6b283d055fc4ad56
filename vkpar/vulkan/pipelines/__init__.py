"""Shaders, what they declare, and pipelines."""
