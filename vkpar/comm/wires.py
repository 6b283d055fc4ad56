"""How elements are written into slots: the wires, and which one each step uses."""

from __future__ import annotations

from dataclasses import dataclass

from vkpar import dtypes
from vkpar.comm.schedule.algorithms.table import Algorithm
from vkpar.comm.schedule.steps import BLOCK
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.vulkan.physical import DeviceInfo

# Parts of the wire kernels' names, see the variants in shaders/wire_*.comp.
_ELEMENTS = {
    dtypes.float32: "f32",
    dtypes.float16: "f16",
    dtypes.bfloat16: "bf16",
    dtypes.int32: "int",
    dtypes.uint32: "int",
}


# Codes of the wire kernels: what they do (an average is a sum times a factor), and how max and min order bits.
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 0}
_ORDERS = {dtypes.int32: 1, dtypes.uint32: 2}
_EXACT_OPS = ("max", "min")


@dataclass(frozen=True)
class Format:
    """A slot's layout: ``payload`` bytes a block, and ``tail`` bytes a block after all payloads."""

    name: str
    payload: int
    tail: int = 0


WORD = Format("word", 4 * BLOCK)
HALF = Format("half", 2 * BLOCK)
BHALF = Format("bhalf", 2 * BLOCK)
SCALED_HALF = Format("scaled", 2 * BLOCK, 4)
Q8 = Format("q8", BLOCK, BLOCK // 8)  # a float32 scale for 32 elements

_EXACT = {
    dtypes.float32: WORD,
    dtypes.float16: HALF,
    dtypes.bfloat16: BHALF,
    dtypes.int32: WORD,
    dtypes.uint32: WORD,
}
_FLOAT32 = {"f16": SCALED_HALF, "bf16": BHALF, "f32": WORD, "q8": Q8}

_VERBATIM = {"f32": WORD, "int": WORD, "f16": HALF, "bf16": BHALF}

NAMES = tuple(_FLOAT32)
CODED, PLAIN = TIMED = ("f16", "f32")  # the wires that a rig is measured with
TIMED_NBYTES = {CODED: 2, PLAIN: 4}  # bytes of a float32 there
TEXELS = 2  # texel buffers of the kernels that read through them: the source, the slots


@dataclass(frozen=True)
class WirePlan:
    """The formats of one collective.

    Attributes:
        element: the array's element type in the kernels' names.
        contribution: how elements and unfinished sums travel.
        final: how finished sums travel.
    """

    element: str
    contribution: Format
    final: Format

    def is_verbatim(self, form: Format) -> bool:
        """Say whether slots of ``form`` hold the elements' bytes as an array does, one after the other."""
        return form is _VERBATIM[self.element]

    @property
    def moves(self) -> bool:
        """Say whether elements are integers, or only moved: their bits are never changed."""
        return self.element == "int"

    @property
    def nbytes_per_block(self) -> int:
        """Bytes of a block in a slot, whichever of the formats is larger."""
        return max(item.payload + item.tail for item in (self.contribution, self.final))

    def blocks(self, slot_nbytes: int) -> int:
        """Return how many blocks a slot of ``slot_nbytes`` holds."""
        return slot_nbytes // self.nbytes_per_block

    def tail_at(self, slot_nbytes: int) -> int:
        """Return the byte of a slot at which the scales begin, for formats that have any."""
        return self.blocks(slot_nbytes) * self.final.payload


def plan(dtype: DType, wire: str, algorithm: Algorithm, op: str = "sum") -> WirePlan:
    """Return the formats for arrays of ``dtype``; only float32 can lose precision on a wire.

    Raises:
        InvalidUsageError: an unknown wire.
        UnsupportedError: a dtype that collectives do not reduce.
    """
    check(dtype, wire)
    final = _final(dtype, wire, op)
    # An unfinished sum of halves is kept in float32, so that it is rounded to the dtype once, by its owner; the
    # largest of halves is one of them.
    widened = algorithm.sums_travel and dtype != dtypes.float32 and op not in _EXACT_OPS
    return WirePlan(_ELEMENTS[dtype], WORD if widened else final, final)


def moved() -> WirePlan:
    """Return the formats of movements of data, whose bits travel as words."""
    return WirePlan("int", WORD, WORD)


def order(dtype: DType) -> int:
    """Return the wire kernels' code of how max and min order elements of ``dtype``."""
    return _ORDERS.get(dtype, 0)


def variant(code: int, measure: bool = False) -> str:
    """Return the end of the name of the wire_reduce kernel that does the op of that code, and measures if asked to.

    Sums have kernels of their own, because drivers without a GPU pay for what the others can do besides.
    """
    return "_any" if code or measure else ""


def processor(info: DeviceInfo) -> str:
    """Return which of the wire kernels run on a device: ``"gpu"``, ``"cpu"`` or, through texel buffers, ``"texel"``."""
    if not info.is_cpu:
        return "gpu"
    return "texel" if info.reads_texels and "arithmetic" in info.features.subgroup_operations else "cpu"


def is_exact(dtype: DType, op: str) -> bool:
    """Say whether elements of ``dtype`` travel exactly in ``op``, whatever the wire."""
    return dtype != dtypes.float32 or op in _EXACT_OPS


def timed_as(dtype: DType, wire: str, op: str = "sum") -> str:
    """Return the measured wire that takes about as long.

    That is ``"f32"`` where finished sums lie in slots as in arrays, so that processors copy them, else ``"f16"``.
    """
    return PLAIN if _final(dtype, wire, op) is _EXACT[dtype] else CODED


def message_nbytes(dtype: DType, wire: str, count: int, op: str = "sum") -> int:
    """Return the bytes of ``count`` finished elements in slots."""
    final = _final(dtype, wire, op)
    return -(-count // BLOCK) * (final.payload + final.tail)


def _final(dtype: DType, wire: str, op: str) -> Format:
    """Return how finished elements travel: the largest of numbers is one of them, so max and min lose nothing."""
    return _EXACT[dtype] if is_exact(dtype, op) else _FLOAT32[wire]


def check(dtype: DType, wire: str) -> None:
    """Refuse unknown wires and dtypes.

    Raises:
        InvalidUsageError, UnsupportedError
    """
    if not isinstance(wire, str) or wire not in _FLOAT32:
        raise InvalidUsageError(f"unknown wire {wire!r}; there are {', '.join(NAMES)}")
    if dtype not in _ELEMENTS:
        names = ", ".join(str(known) for known in _ELEMENTS)
        raise UnsupportedError(f"collectives reduce {names}, not {dtype}; {_way_out(dtype)}")


def _way_out(dtype: DType) -> str:
    """Return what holds the elements of ``dtype``, or their parts, in a type that collectives reduce."""
    if dtype.numpy.kind == "c":
        parts = "x" if dtype.itemsize == 8 else "x.astype(np.complex64)"
        return f"sums of complex numbers are those of their parts: device.array({parts}.view(np.float32))"
    if dtype.numpy.kind in "iu" and dtype.itemsize == 8:
        return (
            "where every value, and every result, fits 32 bits, device.array(x.astype(np.int32)) does; else reduce on "
            "the host, or split the values into parts of fewer bits"
        )
    return f"make it with device.array(x, '{'float32' if dtype.is_float else 'int32'}')"
