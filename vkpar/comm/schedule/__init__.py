"""Who sends what to whom: pure, without Vulkan and without threads."""
