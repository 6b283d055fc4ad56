"""Matrix cores: the features of cooperative matrices, and the shapes that a device multiplies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vkpar.vulkan import api
from vkpar.vulkan.machine import instance

KHR: Final = "VK_KHR_cooperative_matrix"
NV2: Final = "VK_NV_cooperative_matrix2"
BFLOAT16: Final = "VK_KHR_shader_bfloat16"
EXTENSIONS: Final = (KHR, NV2, BFLOAT16)
INTEGER_DOT: Final = "VK_KHR_shader_integer_dot_product"  # a part of Vulkan 1.3, whose drivers still name it
BY_NAME: Final = {
    "cooperative_matrix": KHR,
    "cooperative_matrix2": NV2,
    "bfloat16": BFLOAT16,
    "integer_dot": INTEGER_DOT,
}
"""The extensions by the names that VKPAR_WITHOUT has for them; its other names are of features of Vulkan itself."""

FIRST_LAYERS: Final = {KHR: (1, 3, 255), NV2: (1, 3, 297), BFLOAT16: (1, 4, 313)}
"""The validation layers that know each one's structs first: earlier ones call them errors."""

# The structs of features: sType, and the members that the ``vulkan`` package may lack, in their order. vkpar asks for
# those of _WANTED; all others stay off.
_STRUCTS: Final = {
    KHR: (1000506000, ("cooperativeMatrix", "cooperativeMatrixRobustBufferAccess")),
    NV2: (
        1000593000,
        (
            "cooperativeMatrixWorkgroupScope",
            "cooperativeMatrixFlexibleDimensions",
            "cooperativeMatrixReductions",
            "cooperativeMatrixConversions",
            "cooperativeMatrixPerElementOperations",
            "cooperativeMatrixTensorAddressing",
            "cooperativeMatrixBlockLoads",
        ),
    ),
    BFLOAT16: (1000141000, ("shaderBFloat16Type", "shaderBFloat16DotProduct", "shaderBFloat16CooperativeMatrix")),
}
_UNWANTED: Final = ("cooperativeMatrixRobustBufferAccess", "shaderBFloat16DotProduct")

_FLEXIBLE: Final = 1000593001  # VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_FLEXIBLE_DIMENSIONS_PROPERTIES_NV
_FLEXIBLE_WORDS: Final = 14  # 32-bit words of that struct: sType, padding, pNext, ten members
_KINDS: Final = {
    0: "f16",
    1: "f32",
    2: "f64",
    3: "s8",
    4: "s16",
    5: "s32",
    6: "s64",
    7: "u8",
    8: "u16",
    9: "u32",
    1000141000: "bf16",
}
_SCOPES: Final = {2: "workgroup", 3: "subgroup", 5: "queue_family"}


class Chain(NamedTuple):
    """Structs of features, each pointing to the next.

    Attributes:
        first: a pointer for ``pNext``; NULL where there are none.
        structs: by extension, their 32-bit words; they must outlive the chain's use.
    """

    first: Any
    structs: dict[str, Any]


def chain(extensions: frozenset[str], wanted: tuple[str, ...] = (), after: Any = None) -> Chain:
    """Return the structs of features that a device with ``extensions`` knows, with the features ``wanted`` set.

    The package ``vulkan`` declares one of the three; all are laid out here: sType, pNext, and one VkBool32 a member.
    """
    vk, structs = api.load(), dict[str, Any]()
    pointer = vk.ffi.cast("void*", after or vk.ffi.NULL)
    for extension in EXTENSIONS:
        if extension in extensions:
            kind, members = _STRUCTS[extension]
            words = structs[extension] = vk.ffi.new("uint64_t[]", 2 + (len(members) + 1) // 2)
            words[0], words[1] = kind, int(vk.ffi.cast("uintptr_t", pointer))
            flags = _flags(words)
            for index, member in enumerate(members):
                flags[index] = member in wanted
            pointer = vk.ffi.cast("void*", words)
    return Chain(pointer, structs)


def _flags(words: Any) -> Any:
    ffi = api.load().ffi
    return ffi.cast("uint32_t*", words) + 4


def found(structs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the features that are set, of those that vkpar turns on."""
    return tuple(
        member
        for extension, words in structs.items()
        for index, member in enumerate(_STRUCTS[extension][1])
        if _flags(words)[index] and member not in _UNWANTED
    )


def subgroup_shapes(handle: Any) -> tuple[str, ...]:
    """Return the shapes of subgroups as ``MxNxK a*b->c`` with component types by number of bits."""
    vk = api.load()
    name = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"
    function = vk.instance_function(instance.get().handle, name)
    if function is None:
        return ()
    shapes = vk.enumerate("VkCooperativeMatrixPropertiesKHR", name, handle, function=function, chained=True)
    return tuple(
        f"{s.MSize}x{s.NSize}x{s.KSize} {_kinds(s.AType, s.BType, s.ResultType)}"
        + ("" if s.scope == 3 else f" {_SCOPES.get(s.scope, s.scope)}")
        for s in shapes
    )


def flexible_shapes(handle: Any) -> tuple[str, ...]:
    """Return what sizes of flexible matrices are multiples of, as ``MxNxK a*b->c scope``, and a work-group's size."""
    vk = api.load()
    name = "vkGetPhysicalDeviceCooperativeMatrixFlexibleDimensionsPropertiesNV"
    pointer = vk.lib.vkGetInstanceProcAddr(instance.get().handle, name.encode())
    if pointer == vk.ffi.NULL:
        return ()
    function = vk.ffi.cast("VkResult (*)(VkPhysicalDevice, uint32_t*, void*)", pointer)
    number = vk.ffi.new("uint32_t*")
    vk.check(function(handle, number, vk.ffi.NULL), name)
    structs = vk.ffi.new("uint64_t[]", number[0] * _FLEXIBLE_WORDS // 2)
    words = vk.ffi.cast("uint32_t*", structs)
    for index in range(number[0]):
        words[index * _FLEXIBLE_WORDS] = _FLEXIBLE
    vk.check(function(handle, number, words), name)
    shapes = []
    for index in range(number[0]):
        # MGranularity, NGranularity, KGranularity, AType, BType, CType, ResultType, saturating, scope, invocations
        m, n, k, a, b, _, result, saturating, scope, invocations = words[
            index * _FLEXIBLE_WORDS + 4 : (index + 1) * _FLEXIBLE_WORDS
        ]
        if not saturating:
            shapes.append(f"{m}x{n}x{k} {_kinds(a, b, result)} {_SCOPES.get(scope, scope)} {invocations}")
    return tuple(shapes)


def _kinds(a: int, b: int, result: int) -> str:
    first, second, third = (_KINDS.get(kind, str(kind)) for kind in (a, b, result))
    return f"{first}*{second}->{third}"
