"""Which SPIR-V capabilities, and which float atomics, a device has as vkpar opens it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from vkpar.vulkan.machine.physical import Features

# Capabilities that every device has, those that a member of Features allows, and those of subgroup operations.
_ALWAYS: Final = {0: "Matrix", 1: "Shader"}
_BY_FEATURE: Final = {
    9: ("Float16", "float16"),
    10: ("Float64", "float64"),
    11: ("Int64", "int64"),
    22: ("Int16", "int16"),
    39: ("Int8", "int8"),
    4433: ("StorageBuffer16BitAccess", "storage_16bit"),
    4448: ("StorageBuffer8BitAccess", "storage_8bit"),
    5345: ("VulkanMemoryModel", "memory_model"),
    5346: ("VulkanMemoryModelDeviceScope", "memory_model"),
    6018: ("DotProductInput4x8BitPacked", "integer_dot"),
    6019: ("DotProduct", "integer_dot"),
}
_BY_SUBGROUP: Final = {
    61: ("GroupNonUniform", "basic"),
    62: ("GroupNonUniformVote", "vote"),
    63: ("GroupNonUniformArithmetic", "arithmetic"),
    64: ("GroupNonUniformBallot", "ballot"),
    65: ("GroupNonUniformShuffle", "shuffle"),
    66: ("GroupNonUniformShuffleRelative", "shuffle_relative"),
    67: ("GroupNonUniformClustered", "clustered"),
    68: ("GroupNonUniformQuad", "quad"),
}
# Those of atomics on floats: how the names of the features end that allow them, in buffers or in shared memory.
_BY_ATOMICS: Final = {
    5612: ("AtomicFloat32MinMaxEXT", "Float32AtomicMinMax"),
    5613: ("AtomicFloat64MinMaxEXT", "Float64AtomicMinMax"),
    5616: ("AtomicFloat16MinMaxEXT", "Float16AtomicMinMax"),
    6033: ("AtomicFloat32AddEXT", "Float32AtomicAdd"),
    6034: ("AtomicFloat64AddEXT", "Float64AtomicAdd"),
    6095: ("AtomicFloat16AddEXT", "Float16AtomicAdd"),
}
# Those of matrix cores: Vulkan's names of the features that allow them.
_BY_MATRICES: Final = {
    5116: ("BFloat16TypeKHR", "shaderBFloat16Type"),
    5118: ("BFloat16CooperativeMatrixKHR", "shaderBFloat16CooperativeMatrix"),
    5430: ("CooperativeMatrixReductionsNV", "cooperativeMatrixReductions"),
    5431: ("CooperativeMatrixConversionsNV", "cooperativeMatrixConversions"),
    5432: ("CooperativeMatrixPerElementOperationsNV", "cooperativeMatrixPerElementOperations"),
    5433: ("CooperativeMatrixTensorAddressingNV", "cooperativeMatrixTensorAddressing"),
    5434: ("CooperativeMatrixBlockLoadsNV", "cooperativeMatrixBlockLoads"),
    5439: ("TensorAddressingNV", "cooperativeMatrixTensorAddressing"),
    6022: ("CooperativeMatrixKHR", "cooperativeMatrix"),
}
# Names for messages about the others.
_REFUSED: Final = {
    4: "Addresses",
    5: "Linkage",
    6: "Kernel",
    12: "Int64Atomics",
    30: "StorageBufferArrayDynamicIndexing",
    4434: "UniformAndStorageBuffer16BitAccess",
    4435: "StoragePushConstant16",
    4441: "VariablePointersStorageBuffer",
    4442: "VariablePointers",
    4449: "UniformAndStorageBuffer8BitAccess",
    4450: "StoragePushConstant8",
    5302: "RuntimeDescriptorArray",
    5347: "PhysicalStorageBufferAddresses",
    5357: "CooperativeMatrixNV",
}

OF_DEVICES: Final = frozenset(
    name for name, _ in (*_BY_FEATURE.values(), *_BY_SUBGROUP.values(), *_BY_ATOMICS.values(), *_BY_MATRICES.values())
)
"""The capabilities that some devices have and vkpar turns on where they are; it turns on the others nowhere."""


def missing(capabilities: Iterable[int], features: Features) -> list[str]:
    """Return the names of the capabilities that devices with ``features``, as vkpar opens them, do not have."""
    names = []
    for number in sorted(capabilities):
        if number in _BY_FEATURE:
            name, feature = _BY_FEATURE[number]
            there = bool(getattr(features, feature))
        elif number in _BY_SUBGROUP:
            name, operation = _BY_SUBGROUP[number]
            there = operation in features.subgroup_operations
        elif number in _BY_MATRICES:
            name, feature = _BY_MATRICES[number]
            there = feature in features.matrix_features
        elif number in _BY_ATOMICS:
            name, ending = _BY_ATOMICS[number]
            there = any(atomics.endswith(ending) for atomics in features.float_atomics)
        else:
            name, there = _REFUSED.get(number, f"number {number}"), number in _ALWAYS
        if not there:
            names.append(name)
    return names


def extension_of(feature: str) -> str:
    """Return the extension that a feature of float atomics is of."""
    second = feature.endswith("MinMax") or "Float16" in feature
    return "VK_EXT_shader_atomic_float2" if second else "VK_EXT_shader_atomic_float"
