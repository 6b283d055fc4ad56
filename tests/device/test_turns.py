"""No invocation makes more turns of its loops than CPU drivers allow, at the largest sizes; turns are counted right.

lavapipe ends an invocation after 65,535 turns, silently. What the kernels make is computed from what they are given
(tests/helpers/ops/turns.py); nothing runs then, so that arrays may be as large as there are. Where the driver has the
limit, each kernel also runs with sizes to either side of it, its cuts taken away: it must be right below, and wrong
above.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from conftest import Rigs
from helpers.ops.quantizing import NAMES, blocks_of, columns_of, made
from helpers.ops.turns import MOST, Sent, loop, record, turns_of
from helpers.vulkan.planning import forget

import vkpar
from vkpar.ops.quantized.kinds import KINDS

attention_kernels, lanes, products, few = (
    importlib.import_module(f"vkpar.ops.{name}")
    for name in ("attention.kernels", "tiles.cpu", "matmul.dense", "matmul.few")
)
pytestmark = pytest.mark.device

LIMIT = 65_535
COUNT = """
#version 450
layout(local_size_x = 8) in;
layout(binding = 0) buffer A { uint a[]; };
layout(push_constant) uniform P { uint bodies; uint inside; };
void main() {
    uint sum = 0u;
    for (uint i = 0u; i < bodies; i++) for (uint j = 0u; j < inside; j++) sum += a[8u + j % 4u];
    a[gl_GlobalInvocationID.x] = sum;
}
"""


@pytest.fixture
def cpu(rigs: Rigs) -> Iterator[vkpar.Device]:
    """A device of lavapipe, which has the limit, that keeps nothing of what is recorded."""
    device = rigs("llvmpipe")[0]
    forget(device)
    yield device
    forget(device)


@pytest.fixture
def sent(cpu: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> list[Sent]:
    """What operations dispatch, in place of their doing it."""
    return record(monkeypatch)


def check(sent: list[Sent], *kernels: str) -> None:
    """Fail where a dispatch makes too many turns, or one of the kernels, by how their names begin, was not taken."""
    worst = max(sent, key=turns_of)
    assert turns_of(worst) < MOST, worst
    for kernel in kernels:
        assert any(each.name.startswith(kernel) for each in sent), {each.name for each in sent}


# --- the largest sizes ---

GIB2 = 1 << 29  # elements of float32 in 2 GiB
PARTS = 16 * LIMIT  # steps of K of as many parts as there may be work-groups in a row
SIZES = [(1, 1, GIB2), (1, 8, GIB2 // 8), (64, 8, GIB2 // 64), (1, 8, PARTS), (1, 8, 16 * 49_152), (4, 16, 1 << 20)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
def test_products(
    cpu: vkpar.Device, sent: list[Sent], m: int, n: int, k: int, transpose_a: bool, transpose_b: bool
) -> None:
    a, b = (
        cpu.empty(shape[::-1] if turned else shape) for shape, turned in (((m, k), transpose_a), ((k, n), transpose_b))
    )
    vkpar.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    check(sent, "mat")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("m", [1, 4, 5])
def test_products_of_halves(cpu: vkpar.Device, sent: list[Sent], m: int, dtype: str) -> None:
    vkpar.matmul(cpu.empty((m, 1 << 25), dtype), cpu.empty((1 << 25, 8), dtype))
    check(sent, "matmul_small_f32" if m > 4 else "matmul_small_")


def test_products_in_batches(cpu: vkpar.Device, sent: list[Sent]) -> None:
    for n in (5, 8):
        vkpar.matmul(cpu.empty((3, 2, 1 << 22)), cpu.empty((3, 1 << 22, n)))
    check(sent, "matmul_small_")


def test_products_by_kernels_of_lanes(cpu: vkpar.Device, sent: list[Sent]) -> None:
    if not lanes.has_wide(cpu.info):
        pytest.skip(f"{cpu.name} has other kernels")
    k = products.MAX_TURNS
    for rows, columns, turned in ((9, 64, False), (9, 3, False), (16, 64, True), (12, 3, True)):
        shape = (k, rows) if turned else (rows, k)
        vkpar.matmul(cpu.empty(shape), cpu.empty((k, columns)), transpose_a=turned)
    vkpar.matmul(cpu.empty((8, k)), cpu.empty((k, 64)))
    vkpar.matmul(cpu.empty((2, k)), cpu.empty((64, k)), transpose_b=True)
    vkpar.matmul(cpu.empty((2, k)), cpu.empty((k, 64)))
    check(sent, "matmul_wide_", "matvec_lanes_", "matvec_steps_", "matmul_finish")
    check(sent, "matmul_eights_along_", "matmul_eights_across_", "matmul_narrow_across_")


@pytest.mark.parametrize("kind", NAMES)
def test_products_of_quantised_weights(
    cpu: vkpar.Device, sent: list[Sent], rng: np.random.Generator, kind: str
) -> None:
    q = made(cpu, np.repeat(blocks_of(rng, kind, 3, columns_of(kind, 8)), 1 << 12, axis=1), kind)
    for m, dtype in ((1, "float32"), (30, "float16")):
        vkpar.matmul(cpu.empty((m, q.shape[1]), dtype), q, transpose_b=True)
    vkpar.take(q, cpu.zeros(2, "int32"))
    reads = few.by_lanes(cpu) and q.shape[1] // KINDS[kind].chunk <= few.MAX_TURNS
    assert any(dispatch.name.startswith("quantized_lanes_") for dispatch in sent) == reads
    check(sent, "quantized_unpack", "matmul_small_", *["quantized_lanes_"] * reads)


@pytest.mark.parametrize(("width", "dtype"), [(1, "float16"), (4, "float32"), (64, "float16"), (512, "float32")])
@pytest.mark.parametrize("queries", [1, 3])
def test_attention(cpu: vkpar.Device, sent: list[Sent], width: int, dtype: str, queries: int) -> None:
    """As many keys as are taken, or as a binding holds."""
    q = cpu.empty((1, queries, width), dtype)
    keys = min(cpu.limits.max_storage_buffer_range // (width * q.dtype.itemsize), 1 << 26)
    if width == 1:
        with pytest.raises(vkpar.UnsupportedError, match="keys, and kernels on") as refused:
            vkpar.attention(q, *(cpu.empty((1, keys, width), dtype) for _ in range(2)))
        keys = int(str(refused.value).split()[-3])
    vkpar.attention(q, *(cpu.empty((1, keys, width), dtype) for _ in range(2)))
    check(sent, "attention_small_", "attention_combine")
    combine = next(each for each in sent if each.name == "attention_combine")
    threads, splits = combine.told("threads", "splits")
    assert 16 * threads + 12 * splits <= cpu.limits.max_shared_memory


def test_rows(cpu: vkpar.Device, sent: list[Sent]) -> None:
    """Of as many elements as the kernels take."""
    length = (cpu.limits.max_storage_buffer_range - 256) // 4
    length = min(length, 4 * 16_384 * min(cpu.limits.max_workgroup_invocations, 1024))
    x, w, label = cpu.empty((1, length)), cpu.empty(length), cpu.empty(1, "int32")
    vkpar.softmax(x)
    vkpar.cross_entropy(x, label)
    vkpar.layer_norm(x, w, w)
    vkpar.rms_norm(x, w, residual=x)
    vkpar.layer_norm_grad(x, w, x)
    with pytest.raises(vkpar.UnsupportedError, match="a row has"):
        vkpar.softmax(cpu.empty((1, 2 * length)))
    check(sent, "softmax_softmax_", "softmax_loss_", "norm_layer_", "norm_residual_", "norm_grad_layer_")


def test_gathered_and_made(cpu: vkpar.Device, sent: list[Sent]) -> None:
    table = cpu.empty((1 << 20, 33), "uint8")
    vkpar.take(table, cpu.empty(1 << 20, "int32"))
    cache = vkpar.KVCache(cpu, 2, 1 << 16, 64)
    cache.append(*(cpu.empty((2, 1 << 15, 64), "float16") for _ in range(2)), cpu.empty(1, "int32"))
    vkpar.rope(cpu.empty((4, 1 << 16, 64)), cpu.empty(1 << 16, "int32"))
    vkpar.random.normal(cpu, 1 << 25)
    for shape in ((20, 16_384), (1, 1 << 17), (20, 64)):
        vkpar.sort(cpu.empty(shape, "int64"))
    check(sent, "take_u1", "kv_append_", "rope_", "random_", "sort_")


# --- that turns are counted right ---


@pytest.fixture
def limited(cpu: vkpar.Device, compiler: None) -> vkpar.Device:
    """A device whose driver ends invocations after so many turns, and counts loops within others as is done here."""
    kernel = vkpar.Kernel(cpu, COUNT)
    a = cpu.array(np.ones(12, np.uint32))

    def right(bodies: int, inside: int) -> bool:
        kernel(1, a, push={"bodies": bodies, "inside": inside})
        return bool((a.numpy()[:8] == bodies * inside).all())

    if right(300, 300):
        pytest.skip(f"{cpu.name} does not count turns")
    bodies = LIMIT // (1 + loop(300))
    assert loop(bodies, loop(300)) <= LIMIT < loop(bodies + 1, loop(300))
    assert right(bodies, 300)
    assert not right(bodies + 1, 300)
    return cpu


def to_either_side(
    patch: pytest.MonkeyPatch, kernel: str, right: Callable[[int], bool], sizes: tuple[int, int]
) -> None:
    """Check a kernel with sizes whose turns are below the limit, and above it; the two are one per cent apart."""
    sent = record(patch, run=True)
    for size, below in zip(sizes, (True, False), strict=True):
        sent.clear()
        assert right(size) == below
        found = [turns_of(each) for each in sent if each.name.startswith(kernel)]
        assert len(found) == 1, [each.name for each in sent]
        assert (found[0] <= LIMIT) == below, found
        assert abs(found[0] - LIMIT) < LIMIT / 100, found


@pytest.mark.parametrize(
    ("kernel", "m", "n", "transpose_b", "per_turn"),
    [
        ("matmul_small_", 1, 3, False, 1),
        ("matmul_small_", 9, 3, True, 1),
        ("matmul_wide_", 9, 8, False, 4),
        ("matmul_eights_along_", 9, 8, False, 8),
        ("matmul_narrow_along_", 12, 3, False, 8),
        ("matvec_lanes_", 2, 3, True, 8),
    ],
)
def test_turns_of_products(
    limited: vkpar.Device,
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    m: int,
    n: int,
    transpose_b: bool,
    per_turn: int,
) -> None:
    monkeypatch.setattr(products, "MAX_TURNS", 1 << 30)
    monkeypatch.setattr(lanes, "parts_of", lambda product, most: 1)
    if not kernel.startswith(("matmul_eights_", "matmul_narrow_")):
        monkeypatch.setattr(lanes, "eights", lambda *_: None)
    if kernel == "matmul_small_":
        monkeypatch.setattr(lanes, "takes", lambda *_: False)
    elif not lanes.has_wide(limited.info):
        pytest.skip(f"{limited.name} has other kernels")

    def right(k: int) -> bool:
        a, b = limited.full((m, k), 1.0), limited.full((n, k) if transpose_b else (k, n), 1.0)
        return bool((vkpar.matmul(a, b, transpose_b=transpose_b).numpy() == k).all())

    step = 8 * per_turn
    to_either_side(
        monkeypatch, kernel, right, ((LIMIT - 200) * per_turn // step * step, (LIMIT + 201) * per_turn // step * step)
    )


@pytest.mark.parametrize("width", [100, 512])  # loops of a few constant turns have none once they are compiled
def test_turns_of_attention(limited: vkpar.Device, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(attention_kernels, "_MOST_TURNS", 1 << 30)

    def right(keys: int) -> bool:
        """All keys count alike, and the last of them alone has a value."""
        q, k = limited.zeros((1, 1, width)), limited.zeros((1, keys, width))
        v = limited.zeros((1, keys, width))
        v[:, -1] = float(keys)
        return bool(np.allclose(vkpar.attention(q, k, v).numpy(), 1.0))

    threads = max(64, width // 4)
    tiles = LIMIT // (loop(width // 4) + 2 * threads + 3)
    to_either_side(monkeypatch, "attention_small_", right, (tiles * threads, (tiles + 1) * threads))
