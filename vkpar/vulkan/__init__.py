"""Vulkan handles without math: the only layer that talks to the loader."""
