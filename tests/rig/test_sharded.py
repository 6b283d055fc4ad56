"""Sharded arrays: every state to every other one, exactly; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkpar
from vkpar import InvalidUsageError, UnsupportedError, ops
from vkpar.ops.quantized.kinds import FORMATS
from vkpar.parallel import LazyTensor, Sharded, Split, linked, shard, split

pytestmark = pytest.mark.rig
Open = Callable[..., vkpar.Communicator]
RIGS = {"LL": [3, 1], "LS": [1, 1], "LLL": [5, 2, 1], "LLS": [1, 0, 1]}


def mirrors(made: Sharded, want: np.ndarray) -> bool:
    return made.state == "mirrored" and all(np.array_equal(part.numpy(), want) for part in made.parts)


@pytest.mark.parametrize("letters", RIGS)
def test_every_state_to_every_other_one(rig: Open, rng: np.random.Generator, letters: str) -> None:
    comm, n = rig(letters), len(letters)
    x = rng.integers(-9, 10, (15, 6)).astype(np.float32)
    cuts = [(axis, split(x.shape[axis], comm, ratios=RIGS[letters], granularity=axis + 1)) for axis in (0, 1)]
    cuts.append((-1, Split.of([0] * (n - 1) + [6])))
    made = [shard(x, comm, axis=axis, split=each) for axis, each in cuts]
    fused = Split.of([2, *[0] * (n - 2), 1])
    made.append(shard(x, comm, axis=0, split=fused, segments=(9, 0, 6)))
    for one in made:
        assert one.split is not None
        assert one.split.counts == tuple(0 if p is None else p.shape[one.axis] for p in one.parts)
        assert np.array_equal(one.numpy(), x)
        assert mirrors(one.mirrored(), x)
    whole = shard(x, comm)
    parts = [None if rank == n - 1 and n > 2 else part for rank, part in enumerate(whole.parts)]
    owed = Sharded(comm, x.shape, whole.dtype, "partial", parts)
    total = x * (n - (n > 2))
    assert whole.mirrored() is whole
    assert mirrors(owed.mirrored(), total)
    with pytest.raises(InvalidUsageError, match="a sum over the ranks is owed"):
        owed.numpy()
    for axis, each in cuts:
        for one, want in [*((one, x) for one in (*made, whole)), (owed, total)]:
            again = one.resplit(axis, each)
            assert (again.state, again.axis, again.split) == ("split", axis % 2, each)
            assert np.array_equal(again.numpy(), want)


@pytest.mark.parametrize("letters", ["LLL"])
def test_fused_weights_heads_and_empty_shares(rig: Open, rng: np.random.Generator, letters: str) -> None:
    comm = rig(letters)
    groups = Split.of((2, 0, 1))  # of 3 groups: 4 query heads, a key and a value head each, 2 wide
    weight = rng.integers(-9, 10, (24 + 6 + 6, 5)).astype(np.float32)
    fused = shard(weight, comm, axis=0, split=groups, segments=(24, 6, 6), dtype="float16")
    assert [None if part is None else part.shape for part in fused.parts] == [(24, 5), None, (12, 5)]
    assert fused.nbytes == (240, 0, 120)
    assert np.array_equal(fused.parts[2].numpy(), np.concatenate([weight[16:24], weight[28:30], weight[34:36]]))
    assert np.array_equal(fused.numpy(), weight)
    assert mirrors(fused.mirrored(), weight)
    assert np.array_equal(fused.resplit(1).numpy(), weight)
    for cut in ("mirrored", "resplit"):  # none of these has elements
        empty = shard(np.zeros((0, 3), np.int64), comm, axis=0)
        assert (empty.mirrored() if cut == "mirrored" else empty.resplit(1)).numpy().shape == (0, 3)
    scalar = shard(np.float32(3), comm)
    assert mirrors(scalar, np.float32(3))
    with fused:
        assert not fused.closed
    assert fused.closed
    fused.close()
    with pytest.raises(InvalidUsageError, match="close"):
        fused.numpy()


def test_moves_in_a_graph(rig: Open) -> None:
    comm = rig("LS", wire="f32")
    x = np.arange(60, dtype=np.float32).reshape(6, 10)
    cut, owed = shard(x, comm, axis=1), Sharded(comm, x.shape, vkpar.dtypes.float32, "partial", shard(x, comm).parts)
    with vkpar.capture(comm.devices, comm=comm) as graph:
        made = [(want, to) for one, want in ((cut, x), (owed, 2 * x)) for to in (one.mirrored(), one.resplit(0))]
    for _ in range(2):
        graph.launch().wait()
    for want, one in made:
        assert np.array_equal(one.numpy(), want)
    graph.close()


def test_types(rig: Open, rng: np.random.Generator) -> None:
    comm = rig("LL")
    halves = rng.standard_normal((6, 4)).astype(vkpar.bfloat16.numpy)
    values = halves.astype(np.float32)
    lazy = LazyTensor("w", (6, 4), vkpar.bfloat16, None, 48, "file", lambda: halves.reshape(-1).view(np.uint8))
    for source in (halves, values, lazy):
        found = shard(source, comm, axis=0, dtype="bfloat16").numpy()
        assert found.dtype == halves.dtype
        assert np.array_equal(found, halves)
    assert np.array_equal(shard(lazy, comm, axis=1, dtype="float32").numpy(), values)
    assert np.array_equal(shard(lazy, comm, axis=1, dtype="float16").numpy(), values.astype(np.float16))
    assert shard(lazy, comm).dtype == vkpar.bfloat16
    with pytest.raises(InvalidUsageError, match="beyond the largest float16"):
        shard(np.full((2, 2), 7e4, np.float32), comm, dtype="float16")
    with pytest.raises(InvalidUsageError, match="beyond the largest float16"):
        shard(np.full((2, 2), 7e4, halves.dtype), comm, dtype="float16")
    with pytest.raises(InvalidUsageError, match=r"beyond the largest bfloat16: keep it in float32$"):
        shard(np.full((2, 2), 3.4e38, np.float32), comm, dtype="bfloat16")
    infinite = np.array([[np.inf, np.nan]], np.float32)
    assert np.array_equal(shard(infinite, comm, axis=1, dtype="float16").numpy(), infinite, equal_nan=True)
    host = vkpar.host_array((4, 2), "int32", comm.devices)
    host.numpy()[...] = np.arange(8).reshape(4, 2)
    assert np.array_equal(shard(host, comm, axis=0).numpy(), host.numpy())


class Blocks:
    """Stands for quantised weights on a device."""

    def __init__(self, device: vkpar.Device, blocks: np.ndarray, shape: tuple[int, ...], kind: str) -> None:
        self.shape, self.blocks, self.kind, self.nbytes = shape, blocks.copy(), kind, blocks.nbytes


def test_quantised_tensors(rig: Open, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    comm = rig("LL")
    monkeypatch.setattr(ops, "quantized", Blocks, raising=False)
    kind = FORMATS["q8_0"]
    raw = rng.integers(0, 256, (5, 3 * kind.nbytes), np.uint8)
    raw.reshape(-1, kind.nbytes)[:, :2] = np.float16(0.5).view(np.uint16) >> np.array([0, 8])
    lazy = LazyTensor("w", (5, 96), vkpar.dtypes.float32, kind, raw.nbytes, "file", lambda: raw.reshape(-1))
    rows = shard(lazy, comm, axis=0)
    assert (rows.dtype, [part.shape for part in rows.parts]) == ("q8_0", [(3, 96), (2, 96)])
    assert np.array_equal(np.concatenate([part.blocks for part in rows.parts]), raw)
    columns = shard(lazy, comm, axis=1, split=split(96, comm, granularity=linked((lazy, 1))))
    assert np.array_equal(np.concatenate([part.blocks for part in columns.parts], axis=1), raw)
    fused = shard(lazy, comm, axis=0, segments=(2, 3))
    assert np.array_equal(fused.parts[1].blocks, raw[[1, 4]])
    values = kind.decode(raw)
    assert np.array_equal(shard(lazy, comm, axis=1, dtype="float32").numpy(), values)
    assert np.array_equal(shard(lazy, comm, axis=0, dtype="float16").numpy(), values.astype(np.float16))
    with pytest.raises(InvalidUsageError, match="between blocks of 32 columns"):
        shard(lazy, comm, axis=1)
    for call in (rows.numpy, rows.mirrored, lambda: rows.resplit(0)):
        with pytest.raises(UnsupportedError, match="q8_0"):
            call()


def test_what_is_refused(rig: Open) -> None:
    comm = rig("LL")
    x = np.zeros((4, 6), np.float32)
    bad: list[dict[str, Any]] = [
        {"axis": 2},
        {"axis": True},
        {"split": Split.of((2, 2))},
        {"axis": 0, "split": Split.of((2, 1, 1))},
        {"axis": 0, "split": Split.of((2, 1))},
        {"axis": 0, "split": [Split.of((2, 2))] * 2},
        {"axis": 1, "segments": (2, 3)},
        {"axis": 0, "split": 3},
    ]
    for options in bad:
        with pytest.raises(InvalidUsageError):
            shard(x, comm, **options)
    made = shard(x, comm, axis=0)
    for call in (lambda: made.mirrored("f32"), lambda: made.resplit(0, wire="f32"), lambda: shard(made, comm)):
        with pytest.raises(InvalidUsageError):
            call()
    for state, parts in (
        ("split", made.parts),
        ("mirrored", (made.parts[0], None)),
        ("partial", made.parts[:1]),
        ("?", made.parts),
    ):
        with pytest.raises(InvalidUsageError):
            Sharded(comm, x.shape, made.dtype, state, parts)
    for ratios in ("fast", [1], [1, -1], [0, 0], "1,x", 3):
        with pytest.raises(InvalidUsageError):
            split(4, comm, ratios=ratios)  # type: ignore[arg-type]
    with pytest.raises(InvalidUsageError):
        split(4, [], ratios="even")


def test_ratios_of_devices(rig: Open, settings_override: Callable[..., None], tmp_path: Any) -> None:
    comm = rig("LL")
    assert split(8, comm.devices, ratios="3,1").counts == (6, 2)
    even = split(64, comm, ratios="memory")
    assert abs(even.counts[0] - even.counts[1]) <= 2  # one memory, which others may use
    assert split(64, comm, ratios="memory", used=[1 << 62, 0]).counts == (0, 64)
    with pytest.raises(InvalidUsageError, match="no device has free memory"):
        split(64, comm, ratios="memory", used=[1 << 62] * 2)
    settings_override(max_memory=1 << 20)
    held = comm.devices[0].zeros(3 << 18, "uint8")
    assert split(5, comm, ratios="memory").counts == (1, 4)
    held.close()
    settings_override(max_memory=0, tuning="auto", cache_dir=str(tmp_path / "kept"))
    from vkpar.parallel.rates import cache, speed

    cache.forget()
    cards = {device.info.device_uuid for device in comm.devices}
    counts = split(64, comm, ratios="speed").counts
    assert counts == (32, 32) if len(cards) == 1 else sum(counts) == 64
    files = list((tmp_path / "kept").iterdir())
    assert len(files) == len(cards)  # each is measured once
    cache.forget()
    before = [file.stat().st_mtime_ns for file in files]
    assert speed.speeds(comm.devices)[0] > 0
    assert [file.stat().st_mtime_ns for file in files] == before
    for file in files:
        file.write_text('{"measured": -1}')
    cache.forget()
    assert speed.speeds(comm.devices)[0] > 0
    assert all(file.stat().st_mtime_ns != time for file, time in zip(files, before, strict=True))
