"""The one C helper: submit, enqueue, bridge, wait; ``python -m vkpar.vulkan.pump.build`` builds it in place."""
