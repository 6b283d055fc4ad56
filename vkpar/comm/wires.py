"""How elements are written into slots: the wires, and which one each step uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkpar.abi.formats import BHALF, BLOCK, ELEMENTS, HALF, WIRES, WORD, Format
from vkpar.comm.schedule.algorithms.table import Algorithm
from vkpar.dtypes import DType
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.vulkan.machine.physical import DeviceInfo

# Parts of the wire kernels' names by dtype.
_ELEMENTS = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int32": "int",
    "uint32": "int",
    **{f"{sign}int{bits}": f"i{bits}" for bits in (8, 16, 64) for sign in ("", "u")},
    "float64": "f64",
}
_INTEGERS = ("int", "i8", "i16", "i64")
_WORD_NBYTES = 4


# Codes of the wire kernels: what they do (an average is a sum that is scaled at the end), and what integers' bits mean.
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 0}
_SIGNED, _UNSIGNED = 1, 2
_EXACT_OPS = ("max", "min")  # the largest of numbers is one of them, so that nothing is lost


NAMES = tuple(WIRES)
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
        return form is ELEMENTS[self.element].exact

    @property
    def moves(self) -> bool:
        """Say whether elements are integers, or only moved: their bits are never changed."""
        return self.element in _INTEGERS

    @property
    def forwarded(self) -> str:
        """Return the element type of the kernels that pass finished elements on."""
        return "int" if ELEMENTS[self.element].in_words else self.element

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

    def used(self, blocks: int, slot_nbytes: int, *, final: bool) -> list[tuple[int, int]]:
        """Return what of a slot so many blocks take, as bytes from its start and lengths: payloads, and any scales."""
        form = self.final if final else self.contribution
        parts = (0, blocks * form.payload), (self.tail_at(slot_nbytes), blocks * form.tail)
        return [part for part in parts if part[1]]


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
    widened = algorithm.sums_travel and final in (HALF, BHALF) and dtype.name != "float32" and op not in _EXACT_OPS
    return WirePlan(_ELEMENTS[dtype.name], WORD if widened else final, final)


def moved() -> WirePlan:
    """Return the formats of movements of data, whose bits travel as words."""
    return WirePlan("int", WORD, WORD)


def order(dtype: DType) -> int:
    """Return the wire kernels' code of what the bits of ``dtype`` mean where they are compared or divided."""
    return {"i": _SIGNED, "u": _UNSIGNED}.get(dtype.numpy.kind, 0) if dtype.name != "bfloat16" else 0


def variant(code: int, divides: bool = False) -> str:
    """Return the end of the name of the wire_reduce kernel that does the op of that code.

    Sums, and averages of floats, have kernels of their own, because CPU drivers pay for each branch of a kernel.

    Args:
        code: of the op, see :data:`OPS`.
        divides: it finishes an average of integers.
    """
    return "_any" if code or divides else ""


def processor(info: DeviceInfo) -> str:
    """Return which of the wire kernels run on a device: ``"gpu"``, ``"cpu"`` or, through texel buffers, ``"texel"``."""
    if not info.is_cpu:
        return "gpu"
    return "texel" if info.reads_texels and "arithmetic" in info.features.subgroup_operations else "cpu"


def in_words(dtype: DType) -> bool:
    """Say whether a reduction counts 32-bit words in place of elements of ``dtype``.

    Kernels then see nothing but words, so that drivers without 8-bit or 16-bit storage, or without 64-bit integers,
    take part too.
    """
    return dtype.name in _ELEMENTS and ELEMENTS[_ELEMENTS[dtype.name]].in_words


def is_exact(dtype: DType, op: str) -> bool:
    """Say whether elements of ``dtype`` travel exactly in ``op``, whatever the wire."""
    return dtype.name != "float32" or op in _EXACT_OPS


def chosen(op: str, default: str) -> str:
    """Return the wire of a call without ``wire=``, on a communicator whose wire is ``default``.

    Errors of factors are multiplied by all other factors, so that products travel exactly.
    """
    return PLAIN if op == "prod" else default


def timed_as(dtype: DType, wire: str, op: str = "sum") -> str:
    """Return the measured wire whose times hold for messages of ``dtype`` on ``wire``.

    It is ``"f32"`` where finished sums lie in slots as in arrays, so that processors copy them, else ``"f16"``.
    """
    return PLAIN if _final(dtype, wire, op) is _exact(dtype) else CODED


def message_nbytes(dtype: DType, wire: str, count: int, op: str = "sum") -> int:
    """Return the bytes of ``count`` finished elements in slots."""
    final = _final(dtype, wire, op)
    units = -(-count * dtype.itemsize // _WORD_NBYTES) if in_words(dtype) else count
    return -(-units // BLOCK) * (final.payload + final.tail)


def _exact(dtype: DType) -> Format:
    return ELEMENTS[_ELEMENTS[dtype.name]].exact


def _final(dtype: DType, wire: str, op: str) -> Format:
    """Return how finished elements travel."""
    return _exact(dtype) if is_exact(dtype, op) else WIRES[wire].format


def check(dtype: DType, wire: str) -> None:
    """Refuse unknown wires and dtypes.

    Raises:
        InvalidUsageError: there is no wire of that name.
        UnsupportedError: collectives do not reduce ``dtype``.
    """
    if not isinstance(wire, str) or wire not in WIRES:
        raise InvalidUsageError(f"unknown wire {wire!r}; there are {', '.join(NAMES)}")
    if dtype.name not in _ELEMENTS:
        raise UnsupportedError(
            f"collectives do not reduce {dtype}, only {', '.join(_ELEMENTS)}; all dtypes can "
            f"be moved (all_gather, broadcast){_way_out(dtype)}"
        )


def lacking(dtype: DType, infos: Sequence[DeviceInfo]) -> str | None:
    """Return which of the ranks' devices cannot reduce ``dtype``, and why; None where all can."""
    without = (rank for rank, info in enumerate(infos) if dtype.name == "float64" and not info.features.float64)
    rank = next(without, None)
    return None if rank is None else f"rank {rank}, {infos[rank].name}, lacks shaderFloat64"


def check_devices(dtype: DType, infos: Sequence[DeviceInfo]) -> None:
    """Refuse a dtype that one of the ranks' devices cannot compute.

    Raises:
        UnsupportedError: a device cannot; the message names its rank.
    """
    if (reason := lacking(dtype, infos)) is not None:
        raise UnsupportedError(f"{dtype} is not reduced on these devices, only moved: {reason}")


def _way_out(dtype: DType) -> str:
    """Return what holds the elements of ``dtype``, or their parts, in a type that collectives reduce."""
    if dtype.numpy.kind == "b":
        return "; max and min of uint8 are any and all"
    if dtype.numpy.kind != "c":
        return ""
    parts = "x" if dtype.itemsize == 8 else "x.astype(np.complex64)"
    return f"; its real and imaginary parts can be summed: device.array({parts}.view(np.float32))"
