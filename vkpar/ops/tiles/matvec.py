"""Which kernel of shaders/matvec.comp makes a product with few rows, and by how many invocations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vkpar.ops.call.work import has_warps

if TYPE_CHECKING:
    from vkpar.vulkan.machine.physical import DeviceInfo

KINDS: Final = (
    "rows256",
    "rows1024",
    "columns1",
    "columns8",
    "columns1_subgroups",
    "columns8_subgroups",
)
LARGE: Final = "matvec_rows1024"
MOST_ROWS: Final = 8  # that read a matrix once; with more, matrix units do the work, and want halves

_THREADS: Final = 256
_MANY: Final = 1024
_MANY_SHARED: Final = 32 * 1024
# From so many columns on a GPU has groups enough where fewer invocations make each. Sixteen bytes are a chunk: from so
# many of them in a row of (K, N) on it has groups enough that make wider strips: a unit that runs one group of 1,024 or
# two of 256 reads as fast as it can. Measured on an H200.
_ENOUGH_COLUMNS: Final = 6144
_NARROW_CHUNKS: Final = 512
_BROAD_CHUNKS: Final = 1600
_WIDE_CHUNKS: Final = 2048


def choose(info: DeviceInfo, m: int, n: int, itemsize: int, *, transpose_b: bool, forms: bool) -> tuple[int, str, int]:
    """Return the number of work-groups, the kernel, and how many invocations stand side by side.

    Args:
        info: the device.
        m: rows, up to :data:`MOST_ROWS`.
        n: columns.
        itemsize: bytes of an element of the second operand.
        transpose_b: it is stored as (N, K).
        forms: the product is more than a plain one, such as with a residual. Two columns side by side made a decode
            step with such products 8 % faster on an H200, and one of plain products no faster.
    """
    if transpose_b:
        summed = adds_up(info)
        kind, columns, span = "columns8", 2, 32 if m > 2 and n >= _ENOUGH_COLUMNS else 64
        if m == 1:
            kind, columns, span = ("pairs1", 2, 64) if summed and forms else ("columns1", 1, 64)
        width = _THREADS // span * columns
        return -(-n // width), f"matvec_{kind}" + ("_subgroups" if summed else ""), span
    chunk = 16 // itemsize
    chunks = -(-n // chunk)
    limits = info.limits
    many = limits.max_workgroup_invocations >= _MANY and limits.max_shared_memory >= _MANY_SHARED
    if m == 1 and chunks < _WIDE_CHUNKS and many:
        kind, span = "rows1024", 8 if chunks < _BROAD_CHUNKS else 16
    else:
        kind, span = "rows256", 2 if chunks <= _NARROW_CHUNKS else 4 if chunks < _WIDE_CHUNKS else 8
    return -(-chunks // span), f"matvec_{kind}", span


def choose_folded(info: DeviceInfo, m: int, columns: int, *, gated: bool) -> tuple[int, str, int]:
    """Return what :func:`choose` does for a kernel that folds a norm or a gate into a product by a transposed matrix.

    Args:
        info: the device.
        m: rows, up to :data:`MOST_ROWS`.
        columns: of the product; two of them make one of the result where it is ``gated``.
        gated: see :class:`vkpar.ops.tiles.epilogue.Fold`.
    """
    kind, span = ("pairs1", 64) if m == 1 else ("columns8", 32 if m > 2 and columns >= _ENOUGH_COLUMNS else 64)
    width = _THREADS // span * (1 if gated else 2)
    made = columns // 2 if gated else columns
    return -(-made // width), f"matvec_folded_{kind}_{'subgroups' if adds_up(info) else 'alone'}", span


def adds_up(info: DeviceInfo) -> bool:
    """Tell whether subgroups are known to add up 32 neighbours."""
    return has_warps(info, "arithmetic")
