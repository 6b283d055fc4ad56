"""Collectives take views whose elements do not lie side by side: alone, in groups, in graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import Rigs
from helpers.ops.reducing import own_devices
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vkpar
from vkpar import InvalidUsageError

pytestmark = pytest.mark.rig

Arrays = list[vkpar.Array]


@pytest.fixture(scope="module")
def devices(rigs: Rigs) -> Iterator[list[vkpar.Device]]:
    with own_devices(rigs, "LS") as devices:
        yield devices


# By name: a collective of two ranks on arrays and results; how much of 60 elements each array has, and each result.
Case = tuple[Callable[[vkpar.Communicator, Arrays, Arrays], Any], str, str]
CASES: dict[str, Case] = {
    "all_reduce": (lambda comm, a, b: comm.all_reduce(a), "whole", "none"),
    "all_reduce to": (lambda comm, a, b: comm.all_reduce(a, op="max", out=b), "whole", "whole"),
    "all_reduce some": (lambda comm, a, b: comm.all_reduce([a[0], None], out=[None, b[1]]), "whole", "whole"),
    "reduce": (lambda comm, a, b: comm.reduce(a, 1), "whole", "none"),
    "reduce to": (lambda comm, a, b: comm.reduce(a, 0, op="prod", out=b[0]), "whole", "whole"),
    "reduce_scatter": (lambda comm, a, b: comm.reduce_scatter(a, out=b), "whole", "half"),
    "all_gather": (lambda comm, a, b: comm.all_gather(a, out=b), "half", "whole"),
    "broadcast": (lambda comm, a, b: comm.broadcast(a, 1), "whole", "none"),
    "broadcast to": (lambda comm, a, b: comm.broadcast(a, 0, out=b), "whole", "whole"),
    "scatter": (lambda comm, a, b: comm.scatter(a[1], 1, out=b), "whole", "half"),
    "gather": (lambda comm, a, b: comm.gather(a, 0, out=b[0]), "half", "whole"),
    "all_to_all": (lambda comm, a, b: comm.all_to_all(a, out=b), "whole", "whole"),
    "send_recv": (lambda comm, a, b: comm.send_recv([(a[0], b[1]), (a[1], b[0])]), "whole", "whole"),
    "send_recv here": (lambda comm, a, b: comm.send_recv([(a[0], b[0])]), "whole", "whole"),
}
# Views of 60 or 30 elements of an array (12, 10), and what they are called.
VIEWS: dict[str, Callable[[Any, bool], Any]] = {
    "columns": lambda a, whole: a[:, 3:8] if whole else a[::2, 3:8],
    "every other": lambda a, whole: a[::2] if whole else a[::4],
    "backwards": lambda a, whole: a[::-2, ::-1] if whole else a[5:2:-1, ::-1],
    "transposed": lambda a, whole: a[:6].T if whole else a[:3].T,
    "side by side": lambda a, whole: a[:6] if whole else a[:3],
}


def made(devices: list[vkpar.Device], size: str, view: str, dtype: str, start: int) -> tuple[Arrays, Arrays]:
    """Return arrays of whole numbers, and the views of them."""
    bases = [
        device.array((np.arange(120).reshape(12, 10) * (3 + rank + start) % 7 + 1).astype(dtype))
        for rank, device in enumerate(devices)
    ]
    return bases, [VIEWS[view](base, size != "half") for base in bases]


def expected(comm: vkpar.Communicator, case: Case, sides: Any, views: Any) -> list[np.ndarray[Any, Any]]:
    """Return all bases after the collective on contiguous copies, put where the views are."""
    copies = [[each.copy() for each in side[1]] for side in sides]
    case[0](comm, *copies)
    found = []
    for (bases, _), side, view, size in zip(sides, copies, views, case[1:], strict=True):
        for base, copy in zip(bases, side, strict=True):
            host = base.numpy()
            VIEWS[view](host, size != "half")[...] = copy.numpy()
            found.append(host)
    return found


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(sorted(CASES)),
    views=st.tuples(st.sampled_from(sorted(VIEWS)), st.sampled_from(sorted(VIEWS))),
    dtype=st.sampled_from(["float32", "int16", "int64", "uint8"]),
    how=st.sampled_from(["alone", "group", "graph", "group in graph"]),
)
def test_views_are_taken_as_their_copies_are(
    devices: list[vkpar.Device], name: str, views: tuple[str, str], dtype: str, how: str
) -> None:
    case = CASES[name]
    with vkpar.Communicator(devices, wire="f32") as comm:
        sides = [
            made(devices, size, view, dtype, 5 * k) for k, (size, view) in enumerate(zip(case[1:], views, strict=True))
        ]
        wanted = expected(comm, case, sides, views)

        def run() -> Any:
            return case[0](comm, sides[0][1], sides[1][1])

        if how == "alone":
            run().wait()
        elif how == "group":
            with comm.group():
                run()
        else:
            with vkpar.capture(devices, comm=comm) as graph:
                if how == "graph":
                    run()
                else:
                    with comm.group():
                        run()
            graph.launch().wait()
        found = [base.numpy() for bases, _ in sides for base in bases]
        for one, other in zip(found, wanted, strict=True):
            assert np.array_equal(one, other)


def test_a_graph_reads_and_writes_views_at_each_launch(devices: list[vkpar.Device]) -> None:
    bases = [device.array(np.ones((4, 4), np.float32)) for device in devices]
    with vkpar.Communicator(devices) as comm:
        with vkpar.capture(devices, comm=comm) as graph:
            comm.all_reduce([base[:, 1:2] for base in bases])
        for launches in range(1, 4):
            graph.launch().wait()
            for base in bases:
                assert np.all(base.numpy()[:, 1] == 2**launches)
                assert np.all(base.numpy()[:, [0, 2, 3]] == 1)


def test_two_collectives_of_a_group_do_not_share_views(devices: list[vkpar.Device]) -> None:
    """What the copies would put out of order is refused, with words that say what to do, and nothing is lost."""
    bases = [device.array(np.ones((4, 4), np.float32)) for device in devices]
    others = [device.zeros((4, 4)) for device in devices]
    columns, third = [base[:, :1] for base in bases], devices[0].ones((4, 4))
    with vkpar.Communicator(devices) as comm:

        def both(first: Arrays, second: Arrays) -> None:
            with comm.group():
                comm.all_reduce(first)
                comm.all_reduce(second)

        for first, second in ((columns, bases), (columns, columns), (bases, columns)):
            with pytest.raises(InvalidUsageError, match="pending in a group"):
                both(first, second)
            assert all(np.all(base.numpy() == 1) for base in bases)
        with comm.group():
            comm.all_reduce(bases, out=others)  # others are read and written, in order
            comm.broadcast([third[:, :1], None], out=[other[:, :1] for other in others])
        assert all(np.all(other.numpy()[:, 0] == 1) for other in others)
        assert all(np.all(other.numpy()[:, 1:] == 2) for other in others)
        comm.all_reduce(columns).wait()
    assert all(np.all(base.numpy()[:, 0] == 2) for base in bases)


def test_bad_views_are_refused_before_anything_is_done(devices: list[vkpar.Device]) -> None:
    base, other = (device.array(np.ones((4, 4), np.float32)) for device in devices)
    with vkpar.Communicator(devices) as comm:
        for match, call in {
            "broadcasting": lambda: comm.send_recv([(base[:, 0], other[0, :1].broadcast_to(4))]),
            "overlap": lambda: comm.send_recv([(base[:, 0], other[:, 1]), (base[0], other[1])]),
            "agree": lambda: comm.send_recv([(base[:, 0], other[:3, 1])]),
            "int32": lambda: comm.all_reduce([base[:, 0], devices[1].zeros((4, 4), "int32")[:, 0]]),
            "rank 1": lambda: comm.all_reduce([base[:, 0], base[:, 1]]),
            "one array per rank": lambda: comm.all_reduce([base[:, 0]]),
            "pairs": lambda: comm.send_recv([base[:, 0]]),
        }.items():
            with pytest.raises(InvalidUsageError, match=match):
                call()
    assert np.all(base.numpy() == 1)
    assert np.all(other.numpy() == 1)
