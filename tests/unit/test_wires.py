"""Which formats a collective uses, and what they take in slots."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import pytest
from helpers.vulkan.infos import fake_info
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import InvalidUsageError, UnsupportedError, dtypes, env, testing
from vkpar.abi.formats import WIRES
from vkpar.comm import wires
from vkpar.comm.schedule.algorithms.table import TABLE
from vkpar.comm.schedule.steps import BLOCK
from vkpar.ops.quantized.kinds import MODULES

NARROW = [dtypes.float16, dtypes.bfloat16, dtypes.int32, dtypes.uint32]
WORDY = [dtypes.resolve(name) for name in ("int8", "uint8", "int16", "uint16", "int64", "uint64", "float64")]
SPIRV = Path(vkpar.__file__).parent / "spirv"
COMPARED = ("max", "min")


@pytest.mark.parametrize("op", wires.OPS)
@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("wire", wires.NAMES)
def test_float32_travels_as_asked_unless_it_is_only_compared(name: str, wire: str, op: str) -> None:
    plan = wires.plan(dtypes.float32, wire, TABLE[name], op)
    chosen = wires.WORD if op in COMPARED else WIRES[wire].format
    assert (plan.element, plan.contribution, plan.final) == ("f32", chosen, chosen)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize(("wire", "op"), [*((wire, "sum") for wire in wires.NAMES), *(("f16", op) for op in wires.OPS)])
def test_other_types_travel_exactly(dtype: dtypes.DType, name: str, wire: str, op: str) -> None:
    plan = wires.plan(dtype, wire, TABLE[name], op)
    assert plan.final.payload == dtype.itemsize * BLOCK
    assert plan.final.tail == 0
    # An unfinished sum of halves needs float32; a contribution by itself does not, nor does the largest of some.
    wide = dtype.itemsize == 4 or (TABLE[name].sums_travel and op not in COMPARED)
    assert plan.contribution.payload == (4 if wide else 2) * BLOCK


def test_what_is_only_moved_travels_as_words() -> None:
    assert wires.moved() == wires.WirePlan("int", wires.WORD, wires.WORD)


def test_codes_of_the_kernels() -> None:
    assert wires.OPS == {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 0}
    assert [wires.order(dtype) for dtype in (dtypes.float32, *NARROW, *WORDY)] == [0, 0, 0, 1, 2, *[1, 2] * 3, 0]
    assert [wires.variant(wires.OPS[op]) for op in wires.OPS] == ["", "_any", "_any", "_any", ""]
    assert wires.variant(0, divides=True) == "_any"


@given(
    st.sampled_from([dtypes.float32, *NARROW]),
    st.sampled_from(wires.NAMES),
    st.sampled_from(list(TABLE)),
    st.integers(1, 1 << 24),
)
def test_blocks_and_tail_fit_the_slot(dtype: dtypes.DType, wire: str, name: str, units: int) -> None:
    plan = wires.plan(dtype, wire, TABLE[name])
    nbytes = units * 64
    blocks = plan.blocks(nbytes)
    for used in (plan.contribution, plan.final):
        assert blocks * (used.payload + used.tail) <= nbytes
        assert used.payload % 16 == 0
        if used.tail:
            assert plan.tail_at(nbytes) % 16 == 0
            assert blocks * used.payload <= plan.tail_at(nbytes)
            assert plan.tail_at(nbytes) + blocks * used.tail <= nbytes
    assert (blocks + 1) * plan.nbytes_per_block > nbytes


@pytest.mark.parametrize(
    ("dtype", "wire", "nbytes"),
    [
        (dtypes.float32, "f16", 2 * BLOCK + 4),
        (dtypes.float32, "bf16", 2 * BLOCK),
        (dtypes.float32, "f32", 4 * BLOCK),
        (dtypes.float32, "q8", BLOCK + 8 * 4),
        (dtypes.float16, "f16", 2 * BLOCK),
        (dtypes.bfloat16, "f32", 2 * BLOCK),
        (dtypes.int32, "f16", 4 * BLOCK),
    ],
)
def test_message_sizes(dtype: dtypes.DType, wire: str, nbytes: int) -> None:
    assert wires.message_nbytes(dtype, wire, 0) == 0
    assert wires.message_nbytes(dtype, wire, 1) == wires.message_nbytes(dtype, wire, BLOCK) == nbytes
    assert wires.message_nbytes(dtype, wire, 10 * BLOCK + 1) == 11 * nbytes
    assert wires.message_nbytes(dtype, wire, 1, "max") == dtype.itemsize * BLOCK


@pytest.mark.parametrize("wire", ["", "F16", "fp16", "float32", None, 16])
def test_unknown_wires(wire: str) -> None:
    with pytest.raises(InvalidUsageError, match=", ".join(wires.NAMES)):
        wires.check(dtypes.float32, wire)


@pytest.mark.parametrize(
    ("dtype", "advice"), [("bool", "of uint8 are any and all"), ("complex64", "real and imaginary")]
)
def test_dtypes_that_are_not_summed(dtype: str, advice: str) -> None:
    with pytest.raises(UnsupportedError, match=f"do not reduce {dtype}, only float32, float16, .*{advice}") as caught:
        wires.check(dtypes.resolve(dtype), "f16")
    assert "int32')" not in str(caught.value)


def test_a_device_without_float64_is_named() -> None:
    able, unable = fake_info(), fake_info(1, name="Plain")
    unable = dataclasses.replace(unable, features=dataclasses.replace(unable.features, float64=False))
    double = dtypes.resolve("float64")
    wires.check_devices(double, [able, able])
    wires.check_devices(dtypes.resolve("int64"), [able, unable])
    assert wires.lacking(double, [able, unable]) == "rank 1, Plain, lacks shaderFloat64"
    with pytest.raises(UnsupportedError, match="float64 is not reduced on these devices, only moved: rank 1, Plain"):
        wires.check_devices(double, [able, unable])


@pytest.mark.parametrize("dtype", WORDY)
def test_what_is_not_32_bits_wide_travels_as_whole_words(dtype: dtypes.DType) -> None:
    assert wires.in_words(dtype)
    for algorithm, op in itertools.product(TABLE.values(), wires.OPS):
        plan = wires.plan(dtype, "q8", algorithm, op)
        assert (plan.contribution, plan.final) == (wires.WORD, wires.WORD)
        assert plan.is_verbatim(wires.WORD)
        assert plan.moves is (not dtype.is_float)
    per_block = wires.WORD.payload // dtype.itemsize
    assert wires.message_nbytes(dtype, "f16", per_block) == wires.WORD.payload
    assert wires.message_nbytes(dtype, "f16", per_block + 1) == 2 * wires.WORD.payload


def test_products_travel_exactly_unless_a_wire_is_named() -> None:
    assert [wires.chosen(op, "q8") for op in wires.OPS] == ["q8", "f32", "q8", "q8", "q8"]


def test_the_default_wire_can_be_any() -> None:
    for name in wires.NAMES:
        with env.override(wire=name):
            assert env.get().wire == name
    with pytest.raises(InvalidUsageError, match=", ".join(wires.NAMES)), env.override(wire="f8"):
        pass


def test_every_wire_has_the_kernels_that_send_and_gather_it() -> None:
    """Those that fusion asks for: one that is missing would break a capture."""
    forms = {wire.format.name for wire in WIRES.values()}
    ending = re.compile(rf"((?:wire_gather|norm_gather|\w+_send_).*?)_?({'|'.join(forms)})((?:_whole|_tail)?)")
    found: dict[str, set[str]] = {}
    for match in filter(None, (ending.fullmatch(path.stem) for path in SPIRV.glob("*.spv"))):
        found.setdefault(match[1] + match[3], set()).add(match[2])
    assert all(each == forms for each in found.values()), found
    assert {"wire_gather_whole", "wire_gather_tail", "norm_gather", "matvec_send_columns1"} <= found.keys()
    for kind in MODULES:
        assert {f"quantized_dots_send_{kind}", f"quantized_matvec_send_{kind}_rows1_alone"} <= found.keys()


def test_what_people_read_names_every_wire() -> None:
    said = vkpar.Communicator.__doc__ or ""
    page = (Path(__file__).parents[2] / "docs" / "collectives.md").read_text()
    setting = next(field for field in dataclasses.fields(env.Environment) if field.name == "wire")
    for name, wire in WIRES.items():
        assert f"``{name}``" in said
        assert f"`{name}`" in page
        assert f"{name} ({wire.meaning})" in setting.metadata["meaning"]
        assert testing.wire_of(name) is wire
    assert tuple(WIRES) == wires.NAMES == setting.metadata["choices"]


def test_every_plan_has_its_kernels() -> None:
    dtypes_wires_ops = itertools.product([dtypes.float32, *NARROW, *WORDY], wires.NAMES, wires.OPS)
    for (dtype, wire, op), algorithm in itertools.product(dtypes_wires_ops, TABLE.values()):
        plan = wires.plan(dtype, wire, algorithm, op)
        divides = op == "avg" and not dtype.is_float
        for processor, part in itertools.product(("cpu", "gpu", "texel"), ("whole", "tail")):
            for out in {plan.contribution.name, plan.final.name}:
                end = f"{part}{wires.variant(wires.OPS[op], divides)}"
                reduce = f"wire_reduce_{processor}_{plan.element}_{plan.contribution.name}_{out}_{end}.spv"
                assert SPIRV.joinpath(reduce).is_file(), reduce
            forward = f"wire_forward_{processor}_{plan.forwarded}_{plan.final.name}_{part}.spv"
            assert SPIRV.joinpath(forward).is_file(), forward


@pytest.mark.parametrize(
    ("name", "advice"), [("complex64", r"x\.view\(np\.float32\)"), ("complex128", "complex64.*view")]
)
def test_what_cannot_be_reduced_names_a_way_that_keeps_the_values(name: str, advice: str) -> None:
    with pytest.raises(UnsupportedError, match=advice):
        wires.check(dtypes.resolve(name), "f16")
