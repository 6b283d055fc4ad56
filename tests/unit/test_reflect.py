"""What a SPIR-V module declares, and bytes that are no module."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.resources
import json
import math
import re
import struct
from typing import Any

import pytest
from helpers.vulkan.modules import module, name
from hypothesis import given
from hypothesis import strategies as st

from vkpar import InvalidUsageError, UnsupportedError
from vkpar.vulkan.machine.physical import Features
from vkpar.vulkan.pipelines import declared, shader
from vkpar.vulkan.pipelines.capabilities import missing
from vkpar.vulkan.pipelines.checks import check_shared
from vkpar.vulkan.pipelines.constants import shared_nbytes, size_of
from vkpar.vulkan.pipelines.interface import Entry, Interface, reflect
from vkpar.vulkan.pipelines.opcodes import fold
from vkpar.vulkan.pipelines.push import Member

SHIPPED = sorted(
    item.name[: -len(".spv")]
    for item in importlib.resources.files("vkpar").joinpath("spirv").iterdir()
    if item.name.endswith(".spv")
)


NO_FEATURES = Features(**{item.name: () if "tuple" in str(item.type) else 0 for item in dataclasses.fields(Features)})
WITH_SUBGROUPS = dataclasses.replace(
    NO_FEATURES, subgroup_operations=("basic", "arithmetic", "ballot", "vote", "shuffle", "quad")
)


def test_what_shipped_kernels_declare_is_read_from_their_lines_of_the_manifest() -> None:
    """tools/compile_shaders.py --check holds the manifest against the modules."""
    manifest = json.loads(importlib.resources.files("vkpar.spirv").joinpath("manifest.json").read_text())["kernels"]
    assert sorted(manifest) == SHIPPED
    assert {name: declared.shipped(name).as_dict() for name in SHIPPED} == {
        name: entry["declares"] for name, entry in manifest.items()
    }
    sized = declared.shipped("matvec_cores_f16")
    assert sized == declared.of_module(shader.shipped("matvec_cores_f16"))
    assert sized.width_id is not None
    with pytest.raises(ValueError, match="not found"):
        declared.shipped.__wrapped__("no such kernel")


def test_a_module_is_read_once() -> None:
    spirv = module((71, 14, 33, 0), *BUFFER)
    assert reflect(spirv) is reflect(bytes(bytearray(spirv)))


@pytest.mark.parametrize("kernel", SHIPPED)
def test_shipped_kernels(kernel: str) -> None:
    found = reflect(shader.shipped(kernel))
    assert set(found.entries) == {"main"}
    assert all(found.entries["main"].local_size)
    assert 1 <= math.prod(found.entries["main"].local_size) <= 1024
    more = kernel.startswith(("matvec_send_rows1024", "matvec_cores"))  # taken where the device has so much
    shared = 33 << 10 if more else 32 << 10
    if kernel == "quantized_cores_mixed":  # likewise, by the same choice as of all quantised products on matrix cores
        shared = 48 << 10
    assert found.entries["main"].shared_nbytes <= shared
    newest = (1, 6) if kernel.startswith("attention_cores2") else (1, 5)
    assert found.version <= newest  # 1.6 is for devices with Vulkan 1.3
    doubles = ["Float64"] if "_f64" in kernel else []  # loaded where devices have that
    if "_texel_" in kernel:  # for devices that read texels and add up over subgroups; others never load it
        assert found.foreign == "an image, a sampler or a texel buffer"
        assert missing(found.capabilities, WITH_SUBGROUPS) == [
            *doubles,
            "number 46",
        ]  # SampledBuffer, which is everywhere
    else:
        assert found.foreign == ""
        dots = kernel.startswith("quantized_dots")  # these, and those of subgroups, are taken where the device has them
        of_subgroups = ("expert_few", "expert_router", "attention_warps", "sort_warps", "scan_once")
        subgroups = dots or "_subgroups" in kernel or kernel.startswith(of_subgroups)
        # words of 64 bits, for lavapipe: others never load these
        lanes = kernel.startswith(("matmul_wide", "matvec_lanes", "matvec_steps", "quantized_lanes"))
        pairs = (
            lanes
            or kernel == "take_u64"
            or kernel.startswith(("reduce_rows_w64", "reduce_columns_w64", "reduce_units_w64"))
        )
        pairs = pairs or kernel.startswith(("matmul_eights", "matmul_narrow", "matmul_short"))
        pairs = pairs or (kernel.startswith("each_") and kernel.endswith(("_full", "_rows")))
        pairs = pairs or kernel.startswith(
            ("each_long_", "scatter_add_u64", "scatter_add_f64", "scan_u64", "scan_w64")
        )  # numbers of 64 bits, refused where a device has none
        pairs = pairs or re.match("reduce_units_(once_)?u64", kernel) is not None
        subgroups = subgroups or lanes
        features = dataclasses.replace(WITH_SUBGROUPS if subgroups else NO_FEATURES, integer_dot=dots, int64=pairs)
        if not kernel.startswith(
            ("matmul_coop", "matvec_cores", "attention_cores", "quantized_cores", "expert_cores")
        ):  # what they need: tests/unit/test_cores.py
            assert missing(found.capabilities, features) == doubles
        if kernel.startswith("expert_few"):  # forms that do without some bindings have the layout of all
            assert {0, 1, 2, 3} <= found.bindings <= set(range(10))
        else:
            assert found.bindings == _bindings(kernel, len(found.bindings))
    assert found.bindings
    assert found.push_nbytes <= 128
    assert found.push_nbytes % 4 == 0


def _bindings(kernel: str, number: int) -> set[int]:
    """Return the bindings that a kernel has; those of the wires share the layout of the reduce kernels."""
    if kernel.startswith("wire_forward"):
        return {1, 2}
    return set(range(5)) if kernel.startswith("wire_gather") else set(range(number))


@pytest.mark.parametrize(
    "kernel", [kernel for kernel in SHIPPED if kernel.startswith("wire_") and not kernel.startswith("wire_gather")]
)
def test_wire_kernels_bind_source_target_and_slots(kernel: str) -> None:
    bindings = set(reflect(shader.shipped(kernel)).bindings)
    if "_texel_" in kernel:  # what it reads it reads as texels, too: the source by 3 (reduce alone), the slots by 4
        assert bindings >= ({4} if kernel.startswith("wire_forward") else {3, 4})
        bindings -= {3, 4}
    assert {1, 2} <= bindings <= {0, 1, 2}


def test_everything_that_is_declared() -> None:
    found = reflect(
        module(
            (17, 1),
            (17, 4433),
            (15, 5, 1, *name("first"), 22),
            (15, 5, 2, *name("another one"), 22, 23),
            (15, 4, 3, *name("fragment")),
            (16, 1, 17, 8, 4, 2),
            (16, 2, 17, 1, 1, 1),
            (71, 20, 34, 0),
            (71, 20, 33, 0),
            (71, 21, 34, 0),
            (71, 21, 33, 3),
            (22, 10, 32),
            (23, 11, 10, 4),
            (21, 12, 32, 0),
            (43, 12, 13, 3),
            (28, 14, 11, 13),
            (71, 14, 6, 16),
            (72, 15, 0, 35, 0),
            (72, 15, 1, 35, 16),
            (30, 15, 12, 14),
            (32, 16, 9, 15),
            (30, 17, 10),
            (32, 18, 12, 17),
            (59, 16, 19, 9),
            (59, 18, 20, 12),
            (59, 18, 21, 12),
            (30, 24, 10, 14),
            (32, 25, 4, 24),
            (32, 26, 4, 11),
            (59, 25, 22, 4),
            (59, 26, 23, 4),
        )
    )
    assert found == Interface(
        version=(1, 5),
        capabilities=frozenset({1, 4433}),
        entries={"first": Entry((8, 4, 2), 4 + 48), "another one": Entry((1, 1, 1), 4 + 48 + 16)},
        bindings=frozenset({0, 3}),
        foreign="",
        push_nbytes=16 + 3 * 16,
        given_nbytes=16 + 3 * 16,
        members=(Member("", "uint ", 0, "I"), Member("", "vec4 [3]", 16, "f", (3, 4), (16, 4))),
        elements=((0, "f"), (3, "f")),
    )


def test_buffers_that_are_only_read() -> None:
    declared = [*BUFFER, (32, 18, 12, 17), (59, 18, 20, 12), (59, 18, 21, 12)]
    places = [(71, 20, 33, 0), (71, 21, 33, 1)]
    assert reflect(module(*places, *declared)).readonly == frozenset()
    assert reflect(module(*places, (71, 21, 24), *declared)).readonly == {1}  # the variable
    assert reflect(module(*places, (71, 21, 24), *declared)).writeonly == frozenset()
    assert reflect(module(*places, (71, 21, 25), *declared)).writeonly == {1}
    assert reflect(module(*places, (72, 17, 0, 25), *declared)).writeonly == {0, 1}
    assert reflect(module(*places, (72, 17, 0, 24), *declared)).readonly == {0, 1}  # every member of the block
    alias = [(71, 20, 33, 0), (71, 21, 33, 0), (71, 21, 24)]
    assert reflect(module(*alias, *declared)).readonly == frozenset()  # two names for one binding, one of them written


def pushing(*members: tuple[str, int, int]) -> bytes:
    """Return a module whose push constants are (name, type, offset): type 10 is a float, 12 a uint, 13 an int."""
    names = [(6, 15, index, *name(text)) for index, (text, _, _) in enumerate(members)]
    marks = [(72, 15, index, 35, at) for index, (_, _, at) in enumerate(members)]
    types = [(22, 10, 32), (21, 12, 32, 0), (21, 13, 32, 1), (30, 15, *(kind for _, kind, _ in members))]
    return module(*names, *marks, *types, (32, 16, 9, 15), (59, 16, 19, 9))


def test_offsets_among_the_push_constants() -> None:
    found = reflect(pushing(("n", 12, 0), ("by", 10, 4), ("vkpar_offset_2", 12, 12), ("vkpar_offset_0", 13, 8)))
    assert found.offsets == ((0, 8), (2, 12))
    assert (found.push_nbytes, found.given_nbytes) == (16, 8)
    found = reflect(pushing(("vkpar_offset_0", 12, 0)))
    assert (found.offsets, found.given_nbytes) == (((0, 0),), 0)
    found = reflect(pushing(("vkpar_offset_x", 10, 0), ("vkpar_offset_01", 10, 4)))
    assert (found.offsets, found.given_nbytes) == ((), 8)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("vkpar_offset_0", 12, 0), ("n", 12, 4)], "last of the push constants"),
        ([("vkpar_offset_0", 10, 0)], "vkpar_offset_0 is to be a uint"),
    ],
)
def test_offsets_that_vkpar_cannot_fill(members: list[tuple[str, int, int]], message: str) -> None:
    with pytest.raises(InvalidUsageError, match=message):
        reflect(pushing(*members))


def test_shared_memory_before_entry_points_list_it() -> None:
    declared = [(15, 5, 1, *name("main")), (21, 10, 32, 0), (43, 10, 11, 1000), (28, 12, 10, 11), (32, 13, 4, 12)]
    for version, nbytes in ((0x00010300, 4000), (0x00010400, 0)):
        found = reflect(module(*declared, (59, 13, 14, 4), version=version))
        assert found.entries["main"].shared_nbytes == nbytes


def test_shared_memory_is_sized_by_constants() -> None:
    """An array of ``n * 4`` words, of which n is specialization constant 3, and a struct of a pair and a truth."""
    spirv = module(
        (71, 40, 1, 3),
        (21, 10, 32, 0),
        (43, 10, 11, 4),
        (50, 10, 40, 5),
        (52, 10, 41, 132, 40, 11),
        (28, 12, 10, 41),
        (23, 13, 10, 2),
        (20, 14),
        (30, 15, 13, 14),
        (32, 16, 4, 12),
        (32, 17, 4, 15),
        (59, 16, 20, 4),
        (59, 17, 21, 4),
    )
    assert shared_nbytes(spirv, {}) == 5 * 4 * 4 + 12
    assert shared_nbytes(spirv, {3: 100}) == 100 * 4 * 4 + 12
    with pytest.raises(UnsupportedError, match=r"sums: 1612 bytes of shared memory; D #1 allows 1611"):
        check_shared("D #1", "sums", size_of(spirv), {3: 100}, 1611)
    check_shared("D #1", "sums", size_of(spirv), {3: 100}, 1612)


@pytest.mark.parametrize(
    ("opcode", "operands", "value"),
    [
        *((128, (7, 2), 9), (130, (7, 2), 5), (134, (7, 2), 3), (134, (7, 0), 0), (137, (7, 2), 1), (196, (7, 2), 28)),
        *((168, (1,), 0), (169, (0, 7, 2), 2), (176, (2, 7), 1), (9999, (7, 2), 0)),
    ],
)
def test_constants_that_are_computed(opcode: int, operands: tuple[int, ...], value: int) -> None:
    assert fold(opcode, operands) == value


def test_the_built_in_work_group_size_wins() -> None:
    found = reflect(
        module(
            (15, 5, 1, *name("main")),
            (16, 1, 17, 1, 1, 1),
            (71, 20, 1, 0),
            (71, 23, 11, 25),
            (21, 10, 32, 0),
            (23, 11, 10, 3),
            (50, 10, 20, 64),
            (43, 10, 21, 2),
            (51, 11, 23, 20, 21, 21),
        )
    )
    assert found.entries["main"].local_size == (64, 2, 2)


def test_a_local_size_by_ids_is_foreign() -> None:
    found = reflect(module((15, 5, 1, *name("main")), (331, 1, 38, 20, 20, 20)))
    assert "LocalSizeId" in found.foreign
    assert found.entries["main"].local_size == (0, 0, 0)


def test_row_and_column_major_push_constants() -> None:
    for major, nbytes in ((5, 4 * 16), (4, 2 * 16)):
        matrix = [(22, 10, 32), (23, 11, 10, 2), (24, 12, 11, 4), (30, 13, 12), (32, 14, 9, 13), (59, 14, 15, 9)]
        marks = [(72, 13, 0, 35, 0), (72, 13, 0, 7, 16), (72, 13, 0, major)]
        assert reflect(module(*marks, *matrix)).push_nbytes == nbytes


BUFFER = [(22, 15, 32), (29, 16, 15), (30, 17, 16)]


@pytest.mark.parametrize("array", [(28, 30, 17, 31), (29, 30, 17)])
def test_arrays_of_buffers_are_foreign(array: tuple[int, ...]) -> None:
    found = reflect(module(*BUFFER, (21, 14, 32, 0), (43, 14, 31, 4), array, (32, 18, 12, 30), (59, 18, 20, 12)))
    assert "array of buffers" in found.foreign


def test_storage_buffers_as_spirv_1_0_has_them() -> None:
    declared = [*BUFFER, (32, 18, 2, 17), (59, 18, 20, 2)]
    assert reflect(module((71, 17, 3), (71, 20, 33, 0), *declared)).foreign == ""
    found = reflect(module((71, 17, 2), (71, 20, 33, 0), *declared))
    assert (found.foreign, found.uniforms, found.readonly) == ("", ((0, 0),), {0})


@pytest.mark.parametrize(
    ("number", "text", "feature"),
    [
        (9, "Float16", {"float16": True}),
        (11, "Int64", {"int64": True}),
        (22, "Int16", {"int16": True}),
        (39, "Int8", {"int8": True}),
        (4433, "StorageBuffer16BitAccess", {"storage_16bit": True}),
        (4448, "StorageBuffer8BitAccess", {"storage_8bit": True}),
        (6018, "DotProductInput4x8BitPacked", {"integer_dot": True}),
        (6019, "DotProduct", {"integer_dot": True}),
        (63, "GroupNonUniformArithmetic", {"subgroup_operations": ("basic", "arithmetic")}),
        (10, "Float64", {"float64": True}),
        (4435, "StoragePushConstant16", None),
        (99999, "number 99999", None),
    ],
)
def test_capabilities_and_features(number: int, text: str, feature: dict[str, Any] | None) -> None:
    wanted = {0, 1, number}
    assert missing(wanted, NO_FEATURES) == [text]
    if feature is not None:
        assert missing(wanted, dataclasses.replace(NO_FEATURES, **feature)) == []


@pytest.mark.parametrize("declared", [(12, 1), (2, 1), (0, 0)])
def test_other_sets_and_kinds_are_foreign(declared: tuple[int, int]) -> None:
    storage, in_set = declared
    found = reflect(
        module((71, 20, 34, in_set), (71, 20, 33, 0), *BUFFER, (32, 18, storage, 17), (59, 18, 20, storage))
    )
    assert found.foreign
    assert found.bindings == {0}


REAL = shader.shipped(SHIPPED[0])


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\0" * 20,
        b"#version 450\n",
        REAL[:16],
        REAL[:-1],
        REAL[4:],
        REAL[::-1],
        bytes(reversed(REAL[:4])) + REAL[4:],
    ],
)
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(InvalidUsageError, match="SPIR-V"):
        reflect(garbage)


@pytest.mark.parametrize("words", [[0], [0x00000011], [0x00FF0011, 1]])
def test_instructions_that_do_not_fit_are_refused(words: list[int]) -> None:
    with pytest.raises(InvalidUsageError, match="malformed"):
        reflect(module() + struct.pack(f"<{len(words)}I", *words))


def _only_refuses(spirv: bytes) -> None:
    with contextlib.suppress(InvalidUsageError):
        reflect(spirv)


@pytest.mark.parametrize("kernel", [SHIPPED[0], "matmul_tiled"])
def test_a_module_cut_anywhere_is_refused(kernel: str) -> None:
    whole = shader.shipped(kernel)
    for end in [*range(0, len(whole), 64), *range(len(whole) - 64, len(whole))]:
        with pytest.raises(InvalidUsageError, match="SPIR-V"):
            reflect(whole[:end])


BROKEN = {
    "an entry point without words": module((15,)),
    "an entry point without a name": module((15, 5)),
    "a name without an end": module((15, 5, 1, 0x41414141)),
    "an entry point without its function": module((15, 5, 3, *name("main"))),
    "a call of a function that is not there": module((57, 90, 40, 3)),
    "a local size of two": module((15, 5, 1, *name("main")), (16, 1, 17, 1, 1)),
    "an array of unknown length": module((22, 10, 32), (28, 11, 10, 12)),
    "a name that is not UTF-8": module((15, 5, 1, 0xFFFFFFFF, 0)),
    "a type without words": module((22,)),
    "a constant without a value": module((43, 1)),
    "a variable without words": module((59,)),
    "push constants of an unknown type": module((59, 50, 51, 9)),
    "push constants through no pointer": module((22, 50), (59, 50, 51, 9)),
    "a struct of itself": module((30, 17, 17), (32, 16, 9, 17), (59, 16, 19, 9)),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_declarations_are_refused(what: str) -> None:
    with pytest.raises(InvalidUsageError, match="malformed"):
        reflect(BROKEN[what])


@given(st.integers(5, len(REAL) // 4 - 1), st.integers(0, (1 << 32) - 1))
def test_a_changed_word_is_refused_or_read(at: int, word: int) -> None:
    _only_refuses(REAL[: 4 * at] + struct.pack("<I", word) + REAL[4 * at + 4 :])


@given(st.sampled_from(SHIPPED), st.data())
def test_flipped_bytes_are_refused_or_read(kernel: str, data: st.DataObject) -> None:
    spirv = bytearray(shader.shipped(kernel))
    for _ in range(data.draw(st.integers(1, 8))):
        spirv[data.draw(st.integers(0, min(len(spirv), 4000) - 1))] ^= data.draw(st.integers(1, 255))
    _only_refuses(bytes(spirv))
    _only_refuses(bytes(spirv[: data.draw(st.integers(0, len(spirv)))]))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidUsageError):
        reflect(data)
