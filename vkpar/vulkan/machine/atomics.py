"""The features of atomics on floats: two extensions and their structs."""

from __future__ import annotations

from typing import Any, Final

from vkpar.vulkan import api

_STRUCTS: Final = (  # extensions and their structs of features
    ("VK_EXT_shader_atomic_float", "VkPhysicalDeviceShaderAtomicFloatFeaturesEXT"),
    ("VK_EXT_shader_atomic_float2", "VkPhysicalDeviceShaderAtomicFloat2FeaturesEXT"),
)


def structs(extensions: frozenset[str], wanted: tuple[str, ...] = ()) -> list[Any]:
    """Return the structs of features of float atomics that a device with ``extensions`` knows, each after the last."""
    vk, chain = api.load(), list[Any]()
    for extension, name in _STRUCTS:
        if extension in extensions:
            made = vk.struct(name, pNext=chain[-1] if chain else vk.ffi.NULL)
            for member in set(named(made)) & set(wanted):
                setattr(made, member, 1)
            chain.append(made)
    return chain


def named(features: Any) -> list[str]:
    """Return the names of those that kernels on buffers can use."""
    names = (name for name, _ in api.load().ffi.typeof(features).item.fields)
    return [name for name in names if name.startswith(("shaderBuffer", "shaderShared"))]
