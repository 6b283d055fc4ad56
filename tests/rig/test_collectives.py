"""reduce, reduce_scatter, all_gather, broadcast, all_to_all, send_recv, barrier, groups: against NumPy, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from conftest import Rigs
from helpers.ops.reducing import (
    Numbers,
    check_identical,
    devices_of,
    exact_sum,
    fresh_devices,
    integers,
    own_devices,
    reduced,
    to_dtype,
)
from helpers.vulkan.parking import parked
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import InvalidUsageError, UnsupportedError

pytestmark = [pytest.mark.rig, pytest.mark.sampled(3)]
Open = Callable[..., vkpar.Communicator]
RIGS = ["L", "LL", "LS", "LLL", "SLS", "LSLS"]
MOVED = ["float32", "float16", "bfloat16", "int8", "float64", "uint32"]
COUNTS = (0, 1, 7, 255, 257, 1000, 40_001)


def bits(rng: np.random.Generator, dtype: str, count: int) -> Numbers:
    """Return any bit patterns at all: NaNs with payloads, subnormals, whatever."""
    itemsize = vkpar.dtypes.resolve(dtype).itemsize
    raw = rng.integers(0, 256, count * itemsize, np.uint8)
    return raw.view(vkpar.dtypes.resolve(dtype).numpy)


def upload(comm: vkpar.Communicator, parts: Sequence[Numbers], dtype: str) -> list[vkpar.Array]:
    return [device.array(part, dtype) for device, part in zip(comm.devices, parts, strict=True)]


def empty(comm: vkpar.Communicator, counts: Sequence[int], dtype: str) -> list[vkpar.Array]:
    return [
        device.array(np.full(n * 8, 0xA5, np.uint8).view(vkpar.dtypes.resolve(dtype).numpy)[:n], dtype)
        for device, n in zip(comm.devices, counts, strict=True)
    ]


def same_bits(array: vkpar.Array, want: Numbers) -> bool:
    return array.numpy().tobytes() == np.ascontiguousarray(want).tobytes()


# ---- movements ----


@pytest.mark.parametrize("letters", RIGS)
@pytest.mark.parametrize("dtype", MOVED)
def test_all_gather(rig: Open, rng: np.random.Generator, letters: str, dtype: str) -> None:
    comm = rig(letters)
    n = len(letters)
    for number, count in enumerate(COUNTS):
        counts = [max(0, count - rank * (number % 3)) for rank in range(n)]
        parts = [bits(rng, dtype, size) for size in counts]
        sources = upload(comm, parts, dtype)
        out = empty(comm, [sum(counts)] * n, dtype)
        comm.all_gather(sources, out=out).wait()
        want = np.concatenate(parts)
        assert all(same_bits(array, want) for array in out)
        assert all(same_bits(array, part) for array, part in zip(sources, parts, strict=True))


def test_all_gather_in_place(rig: Open, rng: np.random.Generator) -> None:
    for letters in ("LS", "LLL"):
        comm, n = rig(letters), len(letters)
        for count in (256, 333):
            parts = [bits(rng, "float32", count) for _ in range(n)]
            out = empty(comm, [n * count] * n, "float32")
            own = [array[rank * count : (rank + 1) * count] for rank, array in enumerate(out)]
            for array, part in zip(own, parts, strict=True):
                array.write(part)
            comm.all_gather(own, out=out).wait()
            assert all(same_bits(array, np.concatenate(parts)) for array in out)


def test_all_gather_of_nothing_from_some(rig: Open, rng: np.random.Generator) -> None:
    comm = rig("LSL")
    part = bits(rng, "int32", 100)
    out = empty(comm, [100] * 3, "int32")
    comm.all_gather([None, comm.devices[1].array(part), comm.devices[2].empty(0, "int32")], out=out).wait()
    assert all(same_bits(array, part) for array in out)


@pytest.mark.parametrize("letters", RIGS)
@pytest.mark.parametrize("dtype", MOVED)
def test_broadcast(rig: Open, rng: np.random.Generator, letters: str, dtype: str) -> None:
    comm = rig(letters)
    for root in range(len(letters)):
        for count in (0, 3, 257, 30_001):
            part = bits(rng, dtype, count)
            arrays = empty(comm, [count] * len(letters), dtype)
            arrays[root].write(part)
            comm.broadcast(arrays, root).wait()
            assert all(same_bits(array, part) for array in arrays)


@pytest.mark.parametrize("letters", RIGS)
@pytest.mark.parametrize("dtype", MOVED)
def test_all_to_all(rig: Open, rng: np.random.Generator, letters: str, dtype: str) -> None:
    comm, n = rig(letters), len(letters)
    for count in COUNTS:
        parts = [bits(rng, dtype, count) for _ in range(n)]
        cut = [np.array_split(part, n) for part in parts]
        out = empty(comm, [n * cut[0][rank].size for rank in range(n)], dtype)
        comm.all_to_all(upload(comm, parts, dtype), out=out).wait()
        for rank, array in enumerate(out):
            assert same_bits(array, np.concatenate([pieces[rank] for pieces in cut]))


@pytest.mark.parametrize("letters", RIGS)
def test_send_recv_to_the_next(rig: Open, rng: np.random.Generator, letters: str) -> None:
    comm, n = rig(letters), len(letters)
    for dtype in MOVED:
        for count in (1, 500, 20_001):
            parts = [bits(rng, dtype, count + rank) for rank in range(n)]
            sources = upload(comm, parts, dtype)
            targets = empty(comm, [count + (rank - 1) % n for rank in range(n)], dtype)
            comm.send_recv([(sources[rank], targets[(rank + 1) % n]) for rank in range(n)]).wait()
            for rank in range(n):
                assert same_bits(targets[(rank + 1) % n], parts[rank])


def test_send_recv_any_pairs(rig: Open, rng: np.random.Generator) -> None:
    """Several from one rank, several to one rank, rank to itself, other dtypes and sizes, views at odd bytes."""
    comm = rig("LSL")
    a, b, c = comm.devices
    x, y = bits(rng, "float32", 5000), bits(rng, "uint8", 77)
    big, odd = a.array(x), b.array(np.concatenate([[1, 2, 3], y]).astype(np.uint8))
    first, second, third = c.empty(5000), a.empty(5000), c.empty(80, "uint8")
    comm.send_recv([(big, first), (big, second), (odd[3:], third[1:78])]).wait()
    assert same_bits(first, x)
    assert same_bits(second, x)
    assert same_bits(third[1:78], y)
    comm.send_recv([]).wait()


@given(
    letters=st.sampled_from(["LL", "LS", "LLL", "SLS"]),
    pairs=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3000)), max_size=6),
    dtype=st.sampled_from(MOVED),
    seed=st.integers(0, 1 << 30),
)
def test_any_send_recv(rigs: Rigs, letters: str, pairs: list[tuple[int, int, int]], dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with vkpar.Communicator(devices_of(rigs, letters)) as comm:
        n, listed = comm.nranks, []
        for source, target, count in pairs:
            part = bits(rng, dtype, count)
            offset = int(rng.integers(0, 3))
            held = comm.devices[source % n].array(np.concatenate([bits(rng, dtype, offset), part]), dtype)
            listed.append((held[offset:], comm.devices[target % n].empty(count + offset, dtype)[offset:], part))
        comm.send_recv([(source, target) for source, target, _ in listed]).wait()
        assert all(same_bits(target, part) for _, target, part in listed)


# ---- reductions ----


@pytest.mark.parametrize("algorithm", ["auto", "ring", "two_shot", "naive", "tree"])
@pytest.mark.parametrize("letters", ["L", "LL", "LS", "SLS", "LLLL"])
def test_reduce(rig: Open, rng: np.random.Generator, letters: str, algorithm: str) -> None:
    comm, n = rig(letters, algorithm=algorithm), len(letters)
    for root in range(n):
        for dtype in ("float32", "int32"):
            parts = integers(rng, dtype, 700, n)
            arrays = upload(comm, parts, dtype)
            comm.reduce(arrays, root).wait()
            assert same_bits(arrays[root], exact_sum(parts, dtype))
            others = [rank for rank in range(n) if rank != root]
            assert all(same_bits(arrays[rank], parts[rank]) for rank in others)
            out = comm.devices[root].empty(700, dtype)
            arrays = upload(comm, parts, dtype)
            comm.reduce(arrays, root, out=out).wait()
            assert same_bits(out, exact_sum(parts, dtype))
            assert all(same_bits(array, part) for array, part in zip(arrays, parts, strict=True))


def test_reduce_where_the_root_adds_nothing(rig: Open, rng: np.random.Generator) -> None:
    for letters in ("LS", "LLL"):
        for algorithm in ("two_shot", "naive", "ring"):
            comm, n = rig(letters, algorithm=algorithm), len(letters)
            parts = integers(rng, "float32", 1000, n)
            arrays: list[vkpar.Array | None] = list(upload(comm, parts, "float32"))
            arrays[0] = None
            out = comm.devices[0].array(np.full(1000, np.nan, np.float32))
            comm.reduce(arrays, 0, out=out).wait()
            assert same_bits(out, exact_sum(parts[1:], "float32"))


@pytest.mark.parametrize("algorithm", ["auto", "ring", "two_shot", "direct", "naive"])
@pytest.mark.parametrize("letters", ["L", "LL", "LS", "LLL", "LSLS"])
def test_reduce_scatter(rig: Open, rng: np.random.Generator, letters: str, algorithm: str) -> None:
    if algorithm == "direct" and "S" in letters and "L" in letters:
        algorithm = "two_shot"
    comm, n = rig(letters, algorithm=algorithm), len(letters)
    for count in (0, 1, 5, 256 * n, 1003, 30_001):
        for dtype in ("float32", "float16", "uint32"):
            parts = integers(rng, dtype, count, n)
            want = np.array_split(exact_sum(parts, dtype), n)
            arrays = upload(comm, parts, dtype)
            out = empty(comm, [part.size for part in want], dtype)
            comm.reduce_scatter(arrays, out=out).wait()
            assert all(same_bits(array, part) for array, part in zip(out, want, strict=True))
            assert all(same_bits(array, part) for array, part in zip(arrays, parts, strict=True))


def test_reduce_scatter_in_place_and_then_all_gather_is_all_reduce(rig: Open, rng: np.random.Generator) -> None:
    for letters in ("LS", "LLL"):
        comm, n = rig(letters, algorithm="two_shot"), len(letters)
        count = 512 * n  # equal parts of whole blocks: the same blocks as all_reduce's chunks
        parts = [rng.standard_normal(count).astype(np.float32) for _ in range(n)]
        arrays = upload(comm, parts, "float32")
        own = [array[512 * rank : 512 * (rank + 1)] for rank, array in enumerate(arrays)]
        with comm.group():
            comm.reduce_scatter(arrays, out=own)
            comm.all_gather(own, out=arrays)
        got = check_identical([array.numpy() for array in arrays])
        assert np.allclose(got, np.sum(parts, axis=0, dtype=np.float64), atol=n * 2**-9)
        whole = check_identical(reduced(comm, parts, "float32"))
        assert np.allclose(whole, got, atol=n * 2**-9)


@pytest.mark.parametrize("letters", ["LL", "LS", "LLL"])
@pytest.mark.parametrize("op", ["max", "min"])
def test_max_and_min_are_exact(rig: Open, rng: np.random.Generator, letters: str, op: str) -> None:
    """Whatever the bits: infinities, subnormals and signs of zero too; a NaN makes the result the canonical one."""
    comm, n = rig(letters), len(letters)
    for dtype in ("float32", "float16", "int32", "uint32"):
        parts = [bits(rng, dtype, 3000) for _ in range(n)]
        got = check_identical(reduced(comm, parts, dtype, op=op))
        function = np.maximum if op == "max" else np.minimum
        want = function.reduce(parts)
        if dtype.startswith("float"):
            nan = np.isnan(np.stack(parts)).any(axis=0)
            assert np.array_equal(np.isnan(got), nan)
            assert np.array_equal(got[~nan], want[~nan])
        else:
            assert np.array_equal(got, want)
    zeros = [np.array([0.0, -0.0], np.float32), np.array([-0.0, 0.0], np.float32)] + [np.zeros(2, np.float32)] * (n - 2)
    got = check_identical(reduced(comm, zeros, "float32", op=op))
    assert list(np.signbit(got)) == [op == "min"] * 2


# ---- barrier ----


@pytest.mark.parametrize("letters", ["L", "LS", "LLL"])
def test_barrier(rig: Open, letters: str) -> None:
    """Nothing later starts anywhere while one rank is not there."""
    comm = rig(letters)
    comm.barrier().wait()
    with parked(comm.devices[-1]) as release:
        work = comm.barrier()
        later = comm.devices[0].array(np.ones(4, np.float32))
        copy = later.copy()
        assert not work.done()
        assert comm.devices[0].logical.compute.reached < comm.devices[0].logical.compute.last
        release()
        work.wait(30)
    assert np.all(copy.numpy() == 1)


# ---- groups ----


@pytest.mark.parametrize("letters", ["LL", "LSL"])
def test_a_group_runs_in_order_in_one_submission(rig: Open, rng: np.random.Generator, letters: str) -> None:
    comm, n = rig(letters), len(letters)
    for count in (300, 20_000):
        parts = integers(rng, "float32", count, n)
        arrays = upload(comm, parts, "float32")
        out = empty(comm, [n * count] * n, "float32")
        before = [device.logical.compute.last for device in comm.devices]
        with comm.group():
            first = comm.all_reduce(arrays)
            second = comm.all_gather(arrays, out=out)
            third = comm.all_reduce(arrays)
            assert [device.logical.compute.last for device in comm.devices] == before
        for work in (third, second, first):
            work.wait()
        total = exact_sum(parts, "float32")
        assert all(same_bits(array, np.concatenate([total] * n)) for array in out)
        assert all(same_bits(array, total * n) for array in arrays)


def test_what_is_pending_in_a_group_cannot_be_used(rig: Open) -> None:
    comm = rig("LS")
    arrays = [device.zeros(100) for device in comm.devices]
    with comm.group():
        work = comm.all_reduce(arrays)
        for use in (
            arrays[0].numpy,
            arrays[1][10:].numpy,
            work.wait,
            work.done,
            lambda: arrays[0].write(np.ones(100)),
            lambda: vkpar.add(arrays[0], arrays[0]),
        ):
            with pytest.raises(InvalidUsageError, match="group"):
                use()
        with pytest.raises(InvalidUsageError, match="nest"), comm.group():
            pass
        with pytest.raises(InvalidUsageError, match="destination"):
            comm.all_reduce([arrays[0], None])
    work.wait()
    assert not arrays[0].numpy().any()


def test_a_group_left_by_an_exception_submits_nothing(rig: Open) -> None:
    comm = rig("LL")
    arrays = [device.array(np.ones(10, np.float32)) for device in comm.devices]
    before = comm._engine.rig.last()
    works = []

    def leave() -> None:
        with comm.group():
            works.append(comm.all_reduce(arrays))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        leave()
    assert comm._engine.rig.last() == before
    with pytest.raises(InvalidUsageError, match="nothing was submitted"):
        works[0].wait()
    assert np.all(arrays[0].numpy() == 1)
    comm.all_reduce(arrays).wait()
    assert np.all(arrays[0].numpy() == 2)


def test_a_group_is_used_once_by_its_thread(rig: Open) -> None:
    comm = rig("LL")
    arrays = [device.array(np.ones(10, np.float32)) for device in comm.devices]
    group = comm.group()
    with group:
        comm.all_reduce(arrays)
    with pytest.raises(InvalidUsageError, match="once"), group:
        pass
    assert np.all(arrays[0].numpy() == 2)
    other = comm.group()
    other.__enter__()
    work = comm.all_reduce(arrays)
    refused: list[BaseException] = []

    def leave() -> None:
        try:
            other.__exit__(None, None, None)
        except InvalidUsageError as error:
            refused.append(error)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert "thread" in str(refused[0])
    with pytest.raises(InvalidUsageError, match="nothing was submitted"):
        work.wait()
    comm.all_reduce(arrays).wait()
    assert np.all(arrays[1].numpy() == 4)


def test_a_group_that_is_forgotten_lets_its_arrays_go(rig: Open) -> None:
    """As an interrupt in the middle of leaving would leave it."""
    comm = rig("LL")
    arrays = [device.array(np.ones(10, np.float32)) for device in comm.devices]
    group = comm.group()
    group.__enter__()
    comm.all_reduce(arrays)
    del group
    assert np.all(arrays[0].numpy() == 1)
    comm.all_reduce(arrays).wait()
    assert np.all(arrays[0].numpy() == 2)


def test_an_empty_group_and_one_of_nothing_to_do(rig: Open) -> None:
    comm = rig("LL")
    with comm.group():
        pass
    with comm.group():
        work = comm.all_reduce([device.empty(0) for device in comm.devices])
    work.wait()
    assert work.done()


def test_one_array_in_many_collectives_of_a_group(rig: Open) -> None:
    comm = rig("LSL", wire="f32")
    arrays = [device.array(np.ones(700, np.float32)) for device in comm.devices]
    with comm.group():
        for _ in range(5):
            comm.all_reduce(arrays)
    assert all(np.all(array.numpy() == 3.0**5) for array in arrays)


# ---- copies between devices ----


@pytest.fixture
def pair(request: pytest.FixtureRequest, rigs: Rigs) -> Iterator[list[vkpar.Device]]:
    """Two devices of the test's own: copies between them keep a communicator as long as they are open."""
    with own_devices(rigs, request.param) as devices:
        yield devices


@pytest.mark.parametrize("pair", ["LL", "LS", "SL"], indirect=True)
def test_copies_take_the_links(pair: list[vkpar.Device], rng: np.random.Generator) -> None:
    first, second = pair
    for dtype in MOVED:
        for count in (0, 3, 50_001):
            part = bits(rng, dtype, count)
            source = first.array(part, dtype)
            copied = source.to(second)
            assert copied.device is second
            assert same_bits(copied, part)
            target = second.empty(count, dtype)
            vkpar.copy(source, target)
            source.write(bits(rng, dtype, count))  # program order: the copy read what was there before
            assert same_bits(target, part)


@pytest.mark.parametrize("pair", ["LS"], indirect=True)
def test_copies_do_not_wait(pair: list[vkpar.Device]) -> None:
    first, second = pair
    source = first.array(np.arange(100, dtype=np.float32))
    source.to(second)
    with parked(first) as release:
        copied = source.to(second)
        assert second.logical.compute.reached < second.logical.compute.last
        release()
        assert np.array_equal(copied.numpy(), np.arange(100))


def test_copies_prefer_a_communicator_that_is_there(rigs: Rigs) -> None:
    devices = fresh_devices(rigs, "LL")
    try:
        with vkpar.Communicator(devices) as comm:
            array = devices[0].array(np.ones(10, np.float32))
            before = comm.stats()["collectives"]
            assert np.all(array.to(devices[1]).numpy() == 1)
            assert comm.stats()["collectives"] == before + 1
        assert np.all(array.to(devices[1]).numpy() == 1)
    finally:
        for device in devices:
            device.close()


# ---- what is refused ----


def test_bad_calls_are_refused_before_anything_is_submitted(rig: Open, rigs: Rigs) -> None:
    comm = rig("LS")
    a, b = (device.zeros(100) for device in comm.devices)
    outs = [device.zeros(200) for device in comm.devices]
    halves = [device.zeros(50) for device in comm.devices]
    stranger = devices_of(rigs, "LL")[1].zeros(100)
    bad: list[tuple[str, Callable[[], object]]] = [
        ("out is needed", lambda: comm.all_gather([a, b])),
        ("out is needed", lambda: comm.reduce_scatter([a, b])),
        ("out is needed", lambda: comm.all_to_all([a, b])),
        ("needs 200", lambda: comm.all_gather([a, b], out=halves)),
        ("needs 50", lambda: comm.reduce_scatter([a, b], out=[a, b])),
        ("overlaps", lambda: comm.reduce_scatter([a, b], out=[a[10:60], halves[1]])),
        ("overlaps", lambda: comm.all_gather([outs[0][100:], b], out=outs)),
        ("root", lambda: comm.broadcast([a, b], 2)),
        ("root", lambda: comm.reduce([a, b], -1)),
        ("every rank", lambda: comm.broadcast([a, None])),
        ("must agree", lambda: comm.broadcast([a, halves[1]])),
        ("rank 0 is", lambda: comm.reduce([a, b], 0, out=b)),
        ("no rank of this", lambda: comm.send_recv([(a, stranger)])),
        ("pairs", lambda: comm.send_recv([a, b])),
        ("must agree", lambda: comm.send_recv([(a, halves[1])])),
        ("two destinations overlap", lambda: comm.send_recv([(a, outs[1][:100]), (a, outs[1][50:150])])),
        ("sent elsewhere", lambda: comm.send_recv([(a, b), (b, outs[0][:100])])),
        ("unknown op", lambda: comm.all_reduce([a, b], op="median")),
        ("travels exactly", lambda: comm.all_reduce([a, b], op="max", wire="f16")),
        ("unknown wire", lambda: comm.all_reduce([a, b], wire="f8")),
    ]
    for match, call in bad:
        with pytest.raises(InvalidUsageError, match=match):
            call()
    ints = [device.zeros(10, "int32") for device in comm.devices]
    with pytest.raises(InvalidUsageError, match="travels exactly"):
        comm.all_reduce(ints, op="avg", wire="f16")
    with pytest.raises(UnsupportedError, match=r"float64 is not reduced .* rank 1, SwiftShader.* lacks shaderFloat64"):
        comm.reduce([device.zeros(10, "float64") for device in comm.devices])
    assert comm.stats()["collectives"] == 0


def test_dtypes_that_cannot_be_summed_can_be_moved(rig: Open) -> None:
    comm = rig("LS")
    arrays = [device.array(to_dtype(np.arange(10.0), "float64")) for device in comm.devices]
    comm.broadcast(arrays, 1).wait()
    assert np.array_equal(arrays[0].numpy(), np.arange(10.0))
