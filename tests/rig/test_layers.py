"""Layers over ranks against float64: even and uneven shares, empty ones, biases, segments, one rank alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import require

import vkpar
from vkpar import InvalidUsageError
from vkpar.parallel import (
    ColumnParallelLinear,
    ParallelAttention,
    ParallelEmbedding,
    ParallelMLP,
    RMSNorm,
    RowParallelLinear,
    Split,
    shard,
    split_heads,
)
from vkpar.parallel.cut.sharded import SPLIT, Sharded
from vkpar.parallel.layers import linear
from vkpar.parallel.layers.layers import Parts
from vkpar.parallel.layers.moving import moved
from vkpar.parallel.layers.norms import there
from vkpar.testing import U, gamma

pytestmark = pytest.mark.rig
Rig = Callable[..., vkpar.Communicator]
F64 = np.ndarray[Any, np.dtype[np.float64]]
SHARES = [("L", (24,)), ("LL", (12, 12)), ("LL", (18, 6)), ("LLL", (16, 0, 8)), ("LS", (12, 12))]


def drawn(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return rng.standard_normal(shape).astype(np.float32)


def everywhere(comm: vkpar.Communicator, x: np.ndarray[Any, Any]) -> Parts:
    return [device.array(x) for device in comm.devices]


def near(found: vkpar.Array, expected: F64, terms: F64, count: int) -> None:
    """Within what a product of ``count`` terms may be off, and some roundings after it."""
    assert found.dtype == "float32"
    assert (np.abs(found.numpy() - expected) <= gamma(count + 2) * terms + 4 * U * np.abs(expected)).all()


@pytest.mark.parametrize(("letters", "shares"), SHARES)
def test_columns_then_rows(rig: Rig, rng: np.random.Generator, letters: str, shares: tuple[int, ...]) -> None:
    comm, cut = rig(letters, wire="f32"), Split.of(shares)
    up, bias, down, last = drawn(rng, 24, 20), drawn(rng, 24), drawn(rng, 16, 24), drawn(rng, 16)
    x, r, w = drawn(rng, 5, 20), drawn(rng, 5, 16), drawn(rng, 16)
    first = ColumnParallelLinear(up, bias, comm=comm, split=cut)
    second = RowParallelLinear(down, last, comm=comm, split=cut)
    inner = first(everywhere(comm, x))
    wanted = x.astype(np.float64) @ up.T + bias
    terms = np.abs(x) @ np.abs(up).T.astype(np.float64) + np.abs(bias)
    for rank, part in enumerate(inner):
        start, stop = cut.bounds(rank)
        if start == stop:
            assert part is None
        else:
            near(part, wanted[:, start:stop], terms[:, start:stop], 20)
    kept = np.concatenate([part.numpy() for part in inner if part is not None], axis=1).astype(np.float64)
    result, own = kept @ down.T + last, np.abs(kept) @ np.abs(down).T + np.abs(last)
    plain, _ = second(inner)
    stream, same = second(inner, everywhere(comm, r))
    assert same is stream
    summed, normed = second(inner, everywhere(comm, r), RMSNorm(w, 1e-5, comm=comm))
    for rank in range(comm.nranks):
        near(plain[rank], result, own, 24 + comm.nranks)
        near(stream[rank], result + r, own + np.abs(r), 24 + comm.nranks)
        assert stream[rank].numpy().tobytes() == stream[0].numpy().tobytes()
        assert summed[rank].numpy().tobytes() == summed[0].numpy().tobytes()
        held = summed[rank].numpy().astype(np.float64)
        whole = held / np.sqrt(np.mean(held**2, axis=1, keepdims=True) + 1e-5) * w
        rows = normed[rank]
        rows = rows.array() if isinstance(rows, vkpar.Normed) else rows  # GPUs norm where the rows are multiplied
        assert (np.abs(rows.numpy() - whole) <= (gamma(24) + 6 * U) * np.abs(whole)).all()
    owed = RowParallelLinear(down, last, comm=comm, split=cut, reduce=False)(inner)[0]
    held = [part.numpy().astype(np.float64) for part in owed if part is not None]
    assert (np.abs(sum(held) - result) <= gamma(30) * own).all(), "the bias is in one of them"


@pytest.mark.parametrize("letters", ["LL", "LLL"])
def test_segments_and_gathered_columns(rig: Rig, rng: np.random.Generator, letters: str) -> None:
    """Pieces of two fused weights, cut apart: gathered, they lie as in the whole weight."""
    comm = rig(letters, wire="f32")
    weight, x = drawn(rng, 18, 8), drawn(rng, 3, 8)
    cuts = {2: [[5, 7], [6, 0]], 3: [[5, 1, 6], [6, 0, 0]]}[comm.nranks]
    splits = [Split.of(counts) for counts in cuts]
    wanted = x.astype(np.float64) @ weight.T
    terms = np.abs(x).astype(np.float64) @ np.abs(weight).T
    layer = ColumnParallelLinear(weight, comm=comm, split=splits, segments=[12, 6], gather_output=True)
    for part in layer(everywhere(comm, x)):
        near(part, wanted, terms, 8)
    alone: Parts = [None, comm.devices[1].array(x), *[None] * (comm.nranks - 2)]
    found = layer(alone)  # a row split: one rank has the input, and gets the result
    assert [part is not None for part in found] == [rank == 1 for rank in range(comm.nranks)]
    near(found[1], wanted, terms, 8)
    with vkpar.capture(comm.devices, comm=comm) as graph:
        again = layer(alone)
    graph.launch().wait()
    assert again[1].numpy().tobytes() == found[1].numpy().tobytes()
    graph.close()


def test_one_rank_alone_sums_nothing(rig: Rig, rng: np.random.Generator) -> None:
    comm = rig("LL", wire="f32")
    up, down, x = drawn(rng, 8, 12), drawn(rng, 12, 8), drawn(rng, 2, 12)
    cut = Split.of([0, 8])
    stream: Parts = [None, comm.devices[1].array(x)]
    first = ColumnParallelLinear(up, comm=comm, split=cut)
    second = RowParallelLinear(down, comm=comm, split=cut)
    norm = RMSNorm(np.ones(12, np.float32), 1e-6, comm=comm, ranks=[1])
    with vkpar.capture(comm.devices, comm=comm) as graph:
        result, _ = second(first(stream), stream)
        both = second(first(stream), stream, norm)
        back = moved(result, comm, 0)
    assert graph.stats().collectives == 1, "the move"
    graph.launch().wait()
    assert result[0] is both[1][0] is back[1] is None
    wanted = x + x.astype(np.float64) @ up.T @ down.T
    assert np.abs(back[0].numpy() - wanted).max() < 1e-4
    graph.close()


@pytest.mark.parametrize(("letters", "shares"), [("L", (40,)), ("LL", (33, 7)), ("LLL", (20, 0, 20)), ("LS", (3, 37))])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_embedding_is_exact(
    rig: Rig, rng: np.random.Generator, letters: str, shares: tuple[int, ...], dtype: str
) -> None:
    comm = rig(letters, wire="f16")  # which sums of rows do not take
    table = rng.standard_normal((40, 24)).astype(dtype)
    table[7, 3] = 65504
    ids = np.array([0, 39, 7, 7, 2, 33, 32, 19, 20], np.uint32)
    found = ParallelEmbedding(table, comm=comm, split=Split.of(shares))(everywhere(comm, ids))
    for part in found:
        assert (part.numpy() == table[ids].astype(np.float32)).all()


@pytest.mark.parametrize("kind", ["float32", "float16", "q8_0"])
def test_a_table_that_no_kernel_sees_as_a_whole(
    rng: np.random.Generator, settings_override: Callable[..., None], kind: str
) -> None:
    """Its rows come of several windows; each is multiplied by the scale in float32."""
    require("llvmpipe")
    settings_override(max_binding=1 << 20)
    (device,) = vkpar.open_devices("llvmpipe")
    table, ids = drawn(rng, 26000, 64), np.array([25999, 0, 13000, 8191, 16384, 4096, 25998, 7, 15418], np.uint32)
    with device, vkpar.Communicator([device]) as comm:
        made: Any = table.astype(kind) if kind != "q8_0" else table
        weight: Any = made
        if kind == "q8_0":
            gguf = pytest.importorskip("gguf")
            blocks = gguf.quants.quantize(table, gguf.GGMLQuantizationType.Q8_0)
            made = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0)
            held = vkpar.quantized(device, blocks, table.shape, kind)
            weight = Sharded(comm, table.shape, kind, SPLIT, [held], axis=0, segments=[Split.of([26000])])
        for scale in (None, float(np.float32(25.3))):
            found = ParallelEmbedding(weight, comm=comm, scale=scale)([device.array(ids)])[0]
            assert found is not None
            expected = made[ids].astype(np.float32) * np.float32(1 if scale is None else scale)
            assert np.array_equal(found.numpy(), expected)


def test_gates_by_gelu(rig: Rig, rng: np.random.Generator) -> None:
    comm, cut = rig("LL", wire="f32"), Split.of([8, 24])
    gate, up, down, x = drawn(rng, 32, 16), drawn(rng, 32, 16), drawn(rng, 16, 32), drawn(rng, 3, 16)
    wide = [ColumnParallelLinear(np.concatenate([gate, up]), comm=comm, split=[cut, cut], segments=[32, 32])]
    post = RMSNorm(np.linspace(0.5, 2, 16).astype(np.float32), 1e-6, comm=comm)
    for norm in (None, post):
        block = ParallelMLP(wide, RowParallelLinear(down, comm=comm, split=cut), gate="geglu", post=norm)
        stream, _ = block(everywhere(comm, x), everywhere(comm, x))
        g, u = x.astype(np.float64) @ gate.T, x.astype(np.float64) @ up.T
        gated = g / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
        given = (gated * u) @ down.T
        if norm is not None:
            given *= np.linspace(0.5, 2, 16) / np.sqrt(np.mean(given**2, axis=1, keepdims=True) + 1e-6)
        for part in stream:
            assert np.abs(part.numpy() - (x + given)).max() < 2e-4
    with pytest.raises(InvalidUsageError, match="gate is swiglu or geglu, not 'relu'"):
        ParallelMLP(wide, RowParallelLinear(down, comm=comm, split=cut), gate="relu")


def test_embedding_refuses_signed_numbers(rig: Rig) -> None:
    """What is below 0 beside a rank's first row would be counted from the end of its rows."""
    comm = rig("LL")
    with pytest.raises(InvalidUsageError, match="numbers of uint32, not int32; cast"):
        ParallelEmbedding(np.ones((4, 2), np.float32), comm=comm)(everywhere(comm, np.array([3, 0], np.int32)))


@pytest.mark.parametrize("fused", [True, False])
def test_feed_forward(rig: Rig, rng: np.random.Generator, fused: bool) -> None:
    comm, cut = rig("LL", wire="f32"), Split.of([8, 24])
    gate, up, down, x = drawn(rng, 32, 16), drawn(rng, 32, 16), drawn(rng, 16, 32), drawn(rng, 3, 16)
    if fused:
        both = np.concatenate([gate, up])
        wide = [ColumnParallelLinear(both, comm=comm, split=[cut, cut], segments=[32, 32])]
    else:
        wide = [ColumnParallelLinear(each, comm=comm, split=cut) for each in (gate, up)]
    block = ParallelMLP(wide, RowParallelLinear(down, comm=comm, split=cut))
    stream, _ = block(everywhere(comm, x), everywhere(comm, x))
    g, u = x.astype(np.float64) @ gate.T, x.astype(np.float64) @ up.T
    wanted = x + (g / (1 + np.exp(-g)) * u) @ down.T
    for part in stream:
        assert np.abs(part.numpy() - wanted).max() < 2e-4
    with pytest.raises(InvalidUsageError, match="one layer or two"):
        ParallelMLP([], RowParallelLinear(down, comm=comm))


def test_wrong_use(rig: Rig, rng: np.random.Generator) -> None:
    comm, weight = rig("LL", wire="f32"), drawn(rng, 8, 6)
    columns, rows = shard(weight, comm, axis=0), shard(weight, comm, axis=1)
    for make, message in (
        (lambda: ColumnParallelLinear(rows, comm=comm), "split along axis 0"),
        (lambda: RowParallelLinear(columns, comm=comm), "split along axis 1"),
        (lambda: ColumnParallelLinear(columns, comm=comm, split=Split.of([4, 4])), "give neither split nor segments"),
        (lambda: RowParallelLinear(rows, drawn(rng, 6), comm=comm), "bias of"),
        (lambda: ColumnParallelLinear(columns, comm=comm)([None, None]), "one array at least"),
        (lambda: ColumnParallelLinear(columns, comm=comm)([comm.devices[0].zeros((1, 6))]), "each of 2 ranks"),
        (lambda: RowParallelLinear(rows, comm=comm)([comm.devices[0].zeros((1, 3)), None]), "rank 1 holds a part"),
    ):
        with pytest.raises(InvalidUsageError, match=message):
            make()
    x = [device.zeros((1, 3)) for device in comm.devices]
    with pytest.raises(InvalidUsageError, match="a sum over the ranks goes to all"):
        RowParallelLinear(rows, comm=comm)(x, [comm.devices[0].zeros((1, 8)), None])
    with pytest.raises(InvalidUsageError, match="that of the sum with a residual"):
        RowParallelLinear(rows, comm=comm)(x, norm=RMSNorm(np.ones(8), 1e-6, comm=comm))


# ---- rounded inputs ----


def test_attention_refuses_norms_of_two_epsilons_and_other_numbers_of_layers(rig: Rig) -> None:
    comm, heads = rig("L"), split_heads(2, 1, 8, [1])
    qkv = ColumnParallelLinear(np.zeros((32, 16), np.float32), comm=comm)
    output = RowParallelLinear(np.zeros((16, 16), np.float32), comm=comm)
    norms = tuple(RMSNorm(np.ones(8, np.float32), epsilon, comm=comm) for epsilon in (1e-5, 1e-6))
    with pytest.raises(InvalidUsageError, match="one epsilon"):
        ParallelAttention([qkv], output, heads, theta=1e4, norms=(norms[0], norms[1]))
    with pytest.raises(InvalidUsageError, match="one layer or three"):
        ParallelAttention([qkv, qkv], output, heads, theta=1e4)


@pytest.mark.parametrize("rows", [1, 2, 8, 9])
@pytest.mark.parametrize("cores", [False, True])
def test_few_rows_are_rounded_where_matrix_cores_take_them(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, rows: int, cores: bool
) -> None:
    """More than eight are always; halves of an eps above 1 tell."""
    comm = rig("L")
    if cores:
        monkeypatch.setattr(linear, "streams", lambda info, dtype: "matrices")
    first = ColumnParallelLinear(np.ones((6, 20), np.float16), comm=comm, inputs="float16", results="float16")
    (made,) = first([comm.devices[0].full((rows, 20), 1 + 2**-12, "float32")])
    assert made is not None
    rounded = rows > 8 or (cores and rows > 1)
    assert made.dtype == ("float16" if rounded else "float32")
    assert (made.numpy() == (20 if rounded else 20 * (1 + 2**-12))).all()


@pytest.mark.parametrize("rows", [3, 12])
def test_what_goes_down_is_rounded_once(rig: Rig, rng: np.random.Generator, rows: int) -> None:
    """Gates that give halves leave the bits that a cast of their results does."""
    comm = rig("L")
    wide, back = (rng.standard_normal(shape).astype(np.float16) for shape in ((48, 16), (16, 24)))
    up = ColumnParallelLinear(wide, comm=comm, segments=(24, 24), inputs="float16")
    down = RowParallelLinear(back, comm=comm, inputs="float16")
    x = everywhere(comm, drawn(rng, rows, 16))
    mlp = ParallelMLP([up], down)
    inner, cast = mlp.inner(x, rounds=True), mlp.inner(x)
    assert [str(there(part, 0).dtype) for part in (inner, cast)] == ["float16" if rows > 8 else "float32", "float32"]
    np.testing.assert_array_equal(there(mlp(x)[0], 0).numpy(), there(down(cast)[0], 0).numpy())
