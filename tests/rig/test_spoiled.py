"""What a failed collective has left is not read: not by the host, not by operations, until it is written anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import Rigs
from helpers.ops.reducing import fresh_devices, own_devices
from helpers.vulkan.parking import parked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vkpar
from vkpar import CommunicatorError

pytestmark = pytest.mark.rig


@pytest.fixture
def mixed(rigs: Rigs) -> Iterator[list[vkpar.Device]]:
    """Devices of two drivers, the test's own."""
    with own_devices(rigs, "LLS") as devices:
        yield devices


@pytest.fixture(scope="module")
def kept(rigs: Rigs) -> Iterator[list[vkpar.Device]]:
    """Devices of two drivers for many examples."""
    with own_devices(rigs, "LS") as devices:
        yield devices


def filled(devices: list[vkpar.Device], shape: int | tuple[int, ...] = 1000, value: float = 1.0) -> list[vkpar.Array]:
    return [device.array(np.full(shape, value, np.float32)) for device in devices]


def failing(devices: list[vkpar.Device], *steps: Callable[[vkpar.Communicator], Any]) -> None:
    """Run steps on a communicator that fails before any of their collectives is done, and close it."""
    comm = vkpar.Communicator(devices, timeout=60)
    comm.barrier().wait()
    with parked(devices[-1]) as release:
        made = [step(comm) for step in steps]
        comm._engine.health.fail(RuntimeError("pulled out"))
        release()
    with pytest.raises(CommunicatorError, match="pulled out"):
        comm.close()
    del made


def refused(use: Callable[[], Any]) -> None:
    with pytest.raises(CommunicatorError, match="pulled out") as caught:
        use()
    assert isinstance(caught.value.__cause__, RuntimeError)


def is_lost(array: vkpar.Array) -> bool:
    try:
        array.numpy()
    except CommunicatorError:
        return True
    return False


# ---- close ----


def test_a_block_that_ends_says_that_its_collective_failed(mixed: list[vkpar.Device]) -> None:
    arrays, apart = filled(mixed), filled(mixed, value=3)
    comm = vkpar.Communicator(mixed, timeout=0.3)

    def block() -> None:
        with comm, parked(mixed[1]) as release:
            comm.all_reduce(arrays)
            while not comm.failed:
                time.sleep(0.01)
            release()

    with pytest.raises(CommunicatorError, match="no timeline advanced"):
        block()
    assert comm.closed
    comm.close()
    for array, other in zip(arrays, apart, strict=True):
        with pytest.raises(CommunicatorError, match="no timeline advanced"):
            array.numpy()
        assert np.all(other.numpy() == 3)


def test_a_close_says_nothing_twice(mixed: list[vkpar.Device]) -> None:
    comm = vkpar.Communicator(mixed)
    comm._engine.health.fail(RuntimeError("pulled out"))
    with pytest.raises(CommunicatorError, match="pulled out"):
        comm.barrier()
    comm.close()


def test_what_a_block_raises_comes_before_what_its_close_would(mixed: list[vkpar.Device]) -> None:
    comm = vkpar.Communicator(mixed)

    def block() -> None:
        with comm:
            comm._engine.health.fail(RuntimeError("pulled out"))
            raise KeyError

    with pytest.raises(KeyError):
        block()
    assert comm.closed


def test_a_device_that_closes_its_communicator_says_that_it_failed(mixed: list[vkpar.Device]) -> None:
    comm = vkpar.Communicator(mixed)
    comm._engine.health.fail(RuntimeError("pulled out"))
    with pytest.raises(CommunicatorError, match="pulled out"):
        mixed[0].close()
    assert comm.closed
    assert mixed[0].closed
    mixed[0].close()


# ---- what is lost ----


USES: dict[str, Callable[[vkpar.Array], Any]] = {
    "numpy": lambda a: a.numpy(),
    "read": lambda a: a.read(slice(10, 20)),
    "part": lambda a: a[7].item(),
    "reshaped": lambda a: a.reshape(10, 100).numpy(),
    "transposed": lambda a: a.reshape(10, 100).T.numpy(),
    "column": lambda a: a.reshape(10, 100)[:, 3].numpy(),
    "backwards": lambda a: a[::-1].numpy(),
    "broadcast": lambda a: a.broadcast_to((3, 1000)).numpy(),
    "other type": lambda a: a.astype("float16"),
    "host array": lambda a: a.read(out=vkpar.host_array((1000,), "float32", a.device)),
    "NumPy": np.asarray,
    "list": lambda a: a.tolist(),
    "number": lambda a: a + 1,
    "operator": lambda a: a * a,
    "in place": lambda a: vkpar.add(a, 1, out=a),
    "sum": lambda a: a.sum(),
    "product": lambda a: a.reshape(10, 100) @ a.reshape(100, 10),
    "softmax": vkpar.softmax,
    "copy": lambda a: a.copy(),
    "strided copy": lambda a: a[::2].copy(),
    "concatenate": lambda a: vkpar.concatenate([a, a]),
    "written elsewhere": lambda a: a.device.zeros(1000).copy_from(a),
}


@pytest.mark.parametrize("use", USES)
def test_uses_of_what_is_lost_are_refused(kept: list[vkpar.Device], use: str) -> None:
    arrays = filled(kept)
    for array in arrays:
        USES[use](array.copy())  # its plan is there
    arrays = filled(kept)
    failing(kept, lambda comm: comm.all_reduce(arrays))
    for array in arrays:
        refused(lambda array=array: USES[use](array))  # type: ignore[misc]


CALLS: dict[str, Callable[[vkpar.Communicator, list[vkpar.Array], list[vkpar.Array]], Any]] = {
    "all_reduce": lambda comm, a, b: comm.all_reduce(b),
    "all_reduce to": lambda comm, a, b: comm.all_reduce(a, out=b),
    "avg": lambda comm, a, b: comm.all_reduce(a, op="avg", out=[None, *b[1:]]),
    "reduce": lambda comm, a, b: comm.reduce(b, 1),
    "reduce to": lambda comm, a, b: comm.reduce(a, 0, out=b[0]),
    "reduce_scatter": lambda comm, a, b: comm.reduce_scatter(a, out=[b[0][:500], b[1][500:]]),
    "all_gather": lambda comm, a, b: comm.all_gather([each[:500] for each in a], out=b),
    "broadcast": lambda comm, a, b: comm.broadcast(b, 0),
    "broadcast to": lambda comm, a, b: comm.broadcast(a, 1, out=b),
    "scatter": lambda comm, a, b: comm.scatter(a[0], out=[b[0][:500], b[1][500:]]),
    "gather": lambda comm, a, b: comm.gather([each[:500] for each in a], 1, out=b[1]),
    "all_to_all": lambda comm, a, b: comm.all_to_all(a, out=b),
    "send_recv": lambda comm, a, b: comm.send_recv([(a[0], b[1])]),
}
LOST: dict[str, tuple[list[slice], list[slice]]] = {
    # of arrays and of results, by rank, what a call of CALLS writes
    "all_reduce": ([slice(0), slice(0)], [slice(None), slice(None)]),
    "avg": ([slice(None), slice(0)], [slice(0), slice(None)]),
    "reduce": ([slice(0), slice(0)], [slice(0), slice(None)]),
    "reduce to": ([slice(0), slice(0)], [slice(None), slice(0)]),
    "reduce_scatter": ([slice(0), slice(0)], [slice(500), slice(500, None)]),
    "broadcast": ([slice(0), slice(0)], [slice(0), slice(None)]),
    "scatter": ([slice(0), slice(0)], [slice(500), slice(500, None)]),
    "gather": ([slice(0), slice(0)], [slice(0), slice(None)]),
    "send_recv": ([slice(0), slice(0)], [slice(0), slice(None)]),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["alone", "group", "graph"])
@pytest.mark.parametrize("call", CALLS)
def test_the_results_of_every_collective_are_lost_and_nothing_else(
    kept: list[vkpar.Device], call: str, how: str
) -> None:
    given, results, apart = filled(kept), filled(kept, value=2), filled(kept, value=3)

    def run(comm: vkpar.Communicator) -> Any:
        if how == "graph":
            with vkpar.capture(kept, comm=comm) as graph:
                CALLS[call](comm, given, results)
            return graph.launch()
        if how == "group":
            with comm.group():
                CALLS[call](comm, given, results)
            return None
        return CALLS[call](comm, given, results)

    comm = vkpar.Communicator(kept, timeout=60)
    if how == "graph":  # it is captured before anything is held up
        with vkpar.capture(kept, comm=comm) as graph:
            CALLS[call](comm, given, results)
    with parked(kept[0]) as release, parked(kept[1]) as other:
        _ = graph.launch() if how == "graph" else run(comm)
        comm._engine.health.fail(RuntimeError("pulled out"))
        release()
        other()
    with pytest.raises(CommunicatorError, match="pulled out"):
        comm.close()
    written = LOST.get(call, ([slice(0), slice(0)], [slice(None), slice(None)]))
    for arrays, parts, value in ((given, written[0], 1), (results, written[1], 2)):
        for array, part in zip(arrays, parts, strict=True):
            expected = np.full(1000, value, np.float32)
            lost = np.zeros(1000, bool)
            lost[part] = True
            for start in range(0, 1000, 100):
                piece = slice(start, start + 100)
                if lost[piece].any():
                    refused(lambda array=array, piece=piece: array[piece].numpy())  # type: ignore[misc]
                else:
                    assert np.array_equal(array[piece].numpy(), expected[piece])
    for array in apart:
        assert np.all(array.numpy() == 3)


def test_what_was_done_before_the_failure_stays(mixed: list[vkpar.Device]) -> None:
    done, pending = filled(mixed), filled(mixed)
    failing(mixed, lambda comm: comm.all_reduce(pending))
    comm = vkpar.Communicator(mixed, timeout=60)
    comm.all_reduce(done).wait()
    with parked(mixed[0]) as release:
        comm.all_reduce(filled(mixed))
        comm._engine.health.fail(RuntimeError("pulled out"))
        release()
    assert all(np.all(array.numpy() == 3) for array in done)  # while it is open, too
    with pytest.raises(CommunicatorError):
        comm.close()


def test_what_is_computed_from_what_will_fail_is_lost(mixed: list[vkpar.Device]) -> None:
    """Operations between a collective and its failure, on its devices and on others, of views too."""
    sums, apart = filled(mixed), filled(mixed, value=5)
    found: dict[str, vkpar.Array] = {}

    def follow(comm: vkpar.Communicator) -> None:
        a, b = sums[0], apart[0]
        found["added"] = a + 1
        found["again"] = found["added"] * b
        found["part"] = b.copy()
        found["part"][100:200].copy_from(a[:100])
        found["moved"] = found["again"].to(mixed[1])
        found["column"] = mixed[0].zeros((100, 10))
        found["column"][:, 3].copy_from(a[:100])
        found["apart"] = b * 2
        comm.all_reduce([found["again"], *apart[1:]], out=filled(mixed))

    failing(mixed, lambda comm: comm.all_reduce(sums), follow)
    for name in ("added", "again", "part", "moved", "column"):
        refused(found[name].numpy)
    assert np.all(found["apart"].numpy() == 10)
    assert np.all(found["part"][:100].numpy() == 5)
    assert np.all(found["part"][200:].numpy() == 5)
    assert all(np.all(array.numpy() == 5) for array in apart)


def test_a_copy_to_another_device_that_failed_is_lost(mixed: list[vkpar.Device]) -> None:
    source, grid = mixed[0].array(np.arange(4, dtype=np.float32)), mixed[2].zeros((4, 4))
    source.to(mixed[2]).numpy()
    (pair,) = mixed[0]._pairs
    with parked(mixed[2]) as release:
        made = source.to(mixed[2])
        vkpar.copy(source, grid[:, 1])
        pair._engine.health.fail(RuntimeError("pulled out"))
        release()
    refused(made.numpy)
    refused(grid[:, 1].numpy)
    assert np.array_equal(source.numpy(), np.arange(4))
    vkpar.copy(source, grid[:, 1])  # by another communicator of the two
    assert np.array_equal(grid[:, 1].numpy(), np.arange(4))
    assert np.array_equal(source.to(mixed[2]).numpy(), np.arange(4))


def test_arrays_over_several_buffers(rigs: Rigs) -> None:
    with vkpar.env.override(max_buffer=1 << 16, max_binding=1 << 20):
        devices = fresh_devices(rigs, "LS")
        try:
            arrays, apart = filled(devices, (100, 1000)), filled(devices, (100, 1000), value=3)
            failing(devices, lambda comm: comm.all_reduce([array[:50] for array in arrays]))
            for array, other in zip(arrays, apart, strict=True):
                refused(array.numpy)
                refused(lambda array=array: array + 1)  # type: ignore[misc]
                refused(lambda array=array: array[:, 7].numpy())  # type: ignore[misc]
                assert np.all(array[50:].numpy() == 1)
                assert np.all(other.numpy() == 3)
                vkpar.add(other[:50], 1, out=array[:50])
                assert np.array_equal(array.numpy()[:, 0], [4] * 50 + [1] * 50)
        finally:
            for device in devices:
                device.close()


# ---- what mends it ----


MENDS: dict[str, Callable[[vkpar.Array], Any]] = {
    "write": lambda a: a.write(np.full(1000, 7, np.float32)),
    "regions": lambda a: [a.write(np.full(250, 7, np.float32), slice(k, None, 4)) for k in range(4)],
    "fill": lambda a: a.fill(7),
    "assignment": lambda a: a.__setitem__(slice(None), 7),
    "out": lambda a: vkpar.add(a.device.full(1000, 3), a.device.full(1000, 4), out=a),
    "number": lambda a: vkpar.multiply(a.device.full(1000, 3.5), 2, out=a),
    "product": lambda a: vkpar.matmul(a.device.full((10, 1), 7), a.device.full((1, 100), 1), out=a.reshape(10, 100)),
    "sum": lambda a: vkpar.sum(a.device.full((7, 1000), 1), 0, out=a) if hasattr(vkpar, "sum") else a.fill(7),
    "cast": lambda a: vkpar.cast(a.device.full(1000, 7, "int32"), "float32", out=a),
    "copy": lambda a: vkpar.copy(a.device.full(1000, 7), a),
    "columns": lambda a: [a.reshape(10, 100)[:, k].fill(7) for k in range(100)],
    "column sums": lambda a: [vkpar.add(a.device.full(10, 3), 4, out=a.reshape(10, 100)[:, k]) for k in range(100)],
    "zeros": lambda a: (a.fill_zeros(), vkpar.add(a, 7, out=a)),
    "collective": lambda a: None,
    "graph": lambda a: None,
    "local graph": lambda a: None,
    "from elsewhere": lambda a: None,
    "kernel": lambda a: vkpar.Kernel(
        a.device,
        "#version 450\nlayout(local_size_x=1) in; layout(binding=0) writeonly buffer A { float a[]; };"
        "void main() { a[gl_GlobalInvocationID.x] = 7; }",
    )((1000,), a),
}


WRITERS: dict[str, Callable[[vkpar.Array, vkpar.Array], Any]] = {
    "whole": lambda a, s: vkpar.add(s, s, out=a),
    "fill": lambda a, s: a.fill(7),
    "columns": lambda a, s: [vkpar.add(s[:10], s[:10], out=a.reshape(10, 100)[:, k]) for k in range(100)],
    "filled columns": lambda a, s: [a.reshape(10, 100)[:, k].fill(7) for k in range(100)],
    "view": lambda a, s: [vkpar.copy(s[::2].copy(), a[k::2]) for k in range(2)],
}


@pytest.mark.parametrize("write", WRITERS)
def test_a_graph_mends_when_it_is_launched_not_when_it_is_captured(mixed: list[vkpar.Device], write: str) -> None:
    arrays, sources = filled(mixed), filled(mixed, value=3.5)
    failing(mixed, lambda comm: comm.all_reduce(arrays))
    with vkpar.capture(mixed) as graph:
        for array, source in zip(arrays, sources, strict=True):
            WRITERS[write](array, source)
    assert all(map(is_lost, arrays))
    graph.launch().wait()
    for array in arrays:
        assert np.all(array.numpy() == (3.5 if write == "view" else 7))
    graph.close()


@pytest.mark.parametrize("mend", MENDS)
def test_what_is_written_anew_is_read_again(kept: list[vkpar.Device], mend: str) -> None:
    arrays = filled(kept)
    failing(kept, lambda comm: comm.all_reduce(arrays))
    assert all(map(is_lost, arrays))
    if mend in ("collective", "graph"):
        with vkpar.Communicator(kept) as comm:
            if mend == "collective":
                comm.all_reduce(filled(kept, value=3.5), out=arrays).wait()
            else:
                sources = filled(kept, value=3.5)
                with vkpar.capture(kept, comm=comm) as graph:
                    comm.all_reduce(sources, out=arrays)
                assert all(map(is_lost, arrays))
                graph.launch().wait()
    elif mend == "local graph":
        sources = filled(kept, value=3.5)
        with vkpar.capture(kept) as graph:
            for source, array in zip(sources, arrays, strict=True):
                vkpar.add(source, source, out=array)
        assert all(map(is_lost, arrays))
        graph.launch().wait()
    elif mend == "from elsewhere":
        for source, array in zip(filled(kept[::-1], value=7), arrays, strict=True):
            vkpar.copy(source, array)
    for array in arrays:
        MENDS[mend](array)
        assert np.all(array.numpy() == 7)
        assert np.all((array + 1).numpy() == 8)


def test_a_kernel_that_may_read_what_is_lost_is_refused(mixed: list[vkpar.Device]) -> None:
    arrays = filled(mixed)
    source = """#version 450
        layout(local_size_x = 1) in; layout(binding = 0) buffer A { float a[]; };
        void main() { a[gl_GlobalInvocationID.x] = 7; }"""
    kernel = vkpar.Kernel(mixed[0], source)
    failing(mixed, lambda comm: comm.all_reduce(arrays))
    refused(lambda: kernel((1000,), arrays[0]))
    arrays[0].fill(0)
    kernel((1000,), arrays[0])
    assert np.all(arrays[0].numpy() == 7)


def test_a_graph_that_reads_what_is_lost_is_refused(mixed: list[vkpar.Device]) -> None:
    arrays, made = filled(mixed), filled(mixed)
    with vkpar.capture(mixed) as graph:
        for array, out in zip(arrays, made, strict=True):
            vkpar.add(array, 1, out=out)
    graph.launch().wait()
    failing(mixed, lambda comm: comm.all_reduce(arrays))
    refused(graph.launch)
    for array in arrays:
        array.fill(8)
    graph.launch().wait()
    assert all(np.all(out.numpy() == 9) for out in made)


def test_a_collective_that_reads_what_is_lost_is_refused_and_its_communicator_goes_on(
    mixed: list[vkpar.Device],
) -> None:
    arrays, others = filled(mixed), filled(mixed, value=2)
    failing(mixed, lambda comm: comm.all_reduce(arrays))
    with vkpar.Communicator(mixed) as comm:
        refused(lambda: comm.all_reduce(arrays))
        refused(lambda: comm.all_reduce(arrays, out=filled(mixed)))

        def grouped() -> None:
            with comm.group():
                comm.all_reduce(others)
                comm.all_reduce(arrays)

        refused(grouped)
        comm.all_reduce(others).wait()
        assert all(np.all(other.numpy() == 6) for other in others)
        with comm.group():
            comm.broadcast(others, out=arrays)
            comm.all_reduce(arrays)
        assert all(np.all(array.numpy() == 18) for array in arrays)


def test_a_fresh_array_in_memory_that_was_lost_is_read(mixed: list[vkpar.Device]) -> None:
    before = mixed[0].logical.ledger.clock.lost  # of other tests' arrays, whose memory nobody has taken since
    for early in (True, False):  # dropped before the failure is found, and after
        arrays = filled(mixed, 4096)
        made: list[vkpar.Array] = []

        def drop(_comm: Any, early: bool = early, arrays: Any = arrays, made: Any = made) -> None:
            if early:
                arrays.clear()
                made += [device.full(4096, 3) for device in mixed]
                made += [device.array(np.full(4096, 3, np.float32)) for device in mixed]
                made += [device.full(4096, 1) + 2 for device in mixed]

        failing(mixed, lambda comm, arrays=arrays: comm.all_reduce(arrays), drop)  # type: ignore[misc]
        arrays.clear()
        made += [device.full(4096, 3) for device in mixed]
        made += [device.empty(4096) for device in mixed]
        for array in made[:-3]:
            assert np.all(array.numpy() == 3)
        for array in made[-3:]:
            array.numpy()  # undefined, and nobody's failure
    assert mixed[0].logical.ledger.clock.lost <= before


# ---- by chance ----


class _Model:
    """Four arrays (10, 10) of a device, and what they should hold; NaN: lost."""

    def __init__(self, devices: list[vkpar.Device]) -> None:
        self.device, self.peer = devices
        self.arrays = [self.device.array(np.full((10, 10), k, np.float32)) for k in range(4)]
        self.values = [np.full((10, 10), k, float) for k in range(4)]

    def act(self, kind: str, i: int, j: int, row: int, comm: vkpar.Communicator | None) -> None:
        """Do one thing to array i, from array j."""
        target, part = self.arrays[i], slice(row, row + 3)
        if kind == "write":
            target.write(np.full(target[part].shape, 50.0), part)
            self.values[i][part] = 50
        elif kind == "fill":
            target[:, row].fill(60)
            self.values[i][:, row] = 60
        elif kind == "reduce" and comm is not None:
            comm.all_reduce([target[part], self.peer.zeros(target[part].shape)])
            self.values[i][part] = np.nan
        elif kind == "drop":
            self.arrays[i], self.values[i] = self.device.full((10, 10), 9), np.full((10, 10), 9.0)
        elif kind in _MOVES and i != j:
            self.move(kind, i, j, row, failed=comm is None)

    def move(self, kind: str, i: int, j: int, row: int, *, failed: bool) -> None:
        """Write a part of array i from the same part of array j; all of it is lost where any of that is."""
        part: Any = (slice(None), row) if kind in ("column", "sum of column") else slice(row, row + 3)
        source, target = self.arrays[j][part], self.arrays[i][part]
        move = (lambda: vkpar.add(source, 1, out=target)) if "sum" in kind else (lambda: target.copy_from(source))
        lost = np.isnan(self.values[j][part]).any()
        if failed and (lost or is_lost(source)):
            refused(move)
            return
        move()
        self.values[i][part] = np.nan if lost else self.values[j][part] + ("sum" in kind)

    def check(self) -> None:
        """Compare all rows; those that a view with gaps has lost bytes around may be taken for lost, too."""
        for array, values in zip(self.arrays, self.values, strict=True):
            for row in range(10):
                lost = is_lost(array[row])
                assert lost or np.array_equal(array[row].numpy(), values[row])
                assert lost or not np.isnan(values[row]).any()
            array.fill(4)
            assert np.all(array.numpy() == 4)


_MOVES = ("sum", "copy", "column", "sum of column")
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "fill", "reduce", "drop", *_MOVES]),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 9),
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(before=_STEPS, after=_STEPS)
def test_what_is_read_is_right(kept: list[vkpar.Device], before: Any, after: Any) -> None:
    """Whatever is done before and after a failure: what is lost is refused, all else has the values of a model."""
    model = _Model(kept)
    failing(kept, lambda comm: [model.act(*step, comm) for step in before])
    for step in after:
        model.act(*step, None)
    model.check()
