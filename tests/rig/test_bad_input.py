"""Wrong arguments: a typed error before anything is submitted, and the communicator goes on."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import Rigs
from helpers.ops.reducing import devices_of

import vkpar
from vkpar import InvalidUsageError, UnsupportedError

pytestmark = pytest.mark.rig


@pytest.fixture(params=["LL", "LS"])
def comm(request: pytest.FixtureRequest, rigs: Rigs) -> Iterator[vkpar.Communicator]:
    """A communicator of two ranks, which must work after the test."""
    with vkpar.Communicator(devices_of(rigs, request.param)) as made:
        yield made
        check_works(made)


def check_works(comm: vkpar.Communicator) -> None:
    """Check that a communicator still sums."""
    arrays = [device.array(np.full(300, rank + 1, np.float32)) for rank, device in enumerate(comm.devices)]
    comm.all_reduce(arrays).wait()
    for array in arrays:
        assert np.all(array.numpy() == sum(range(1, comm.nranks + 1)))


def submitted(comm: vkpar.Communicator) -> list[int]:
    """Return what the ranks' queues were given so far."""
    return [device.logical.compute.last for device in comm.devices]


def refused(comm: vkpar.Communicator, error: type[Exception], match: str, call: Callable[[], object]) -> None:
    """Check that ``call`` raises, twice, and submits nothing."""
    before = submitted(comm)
    for _ in range(2):
        with pytest.raises(error, match=match):
            call()
    assert submitted(comm) == before


def test_arrays_that_are_no_list_of_arrays(comm: vkpar.Communicator) -> None:
    a, b = (device.zeros(100) for device in comm.devices)
    reduce = comm.all_reduce
    wrong: list[Any] = [[], [a], [a, b, b], None, 3, (x for x in (a, b)), {0: a, 1: b}]
    for arrays in wrong:
        refused(comm, InvalidUsageError, "one array per rank, 2 of them", functools.partial(reduce, arrays))
        if arrays is not None:
            refused(comm, InvalidUsageError, "out takes", functools.partial(reduce, [a, b], out=arrays))
    with pytest.raises(InvalidUsageError):
        reduce(a)  # type: ignore[arg-type]
    for arrays in ([a, np.zeros(100, np.float32)], [a, "b"], [a, [1.0] * 100]):
        refused(comm, InvalidUsageError, r"\[1\] is a", functools.partial(reduce, arrays))
        refused(comm, InvalidUsageError, r"out\[1\] is a", functools.partial(reduce, [a, b], out=arrays))


def test_arrays_on_the_wrong_rank(comm: vkpar.Communicator) -> None:
    a, b = (device.zeros(100) for device in comm.devices)
    refused(comm, InvalidUsageError, "rank 0", lambda: comm.all_reduce([b, a]))
    refused(comm, InvalidUsageError, "rank 1", lambda: comm.all_reduce([a, a]))
    refused(comm, InvalidUsageError, r"out\[0\]", lambda: comm.all_reduce([a, b], out=[b, a]))
    with vkpar.open_devices(str(comm.devices[0].info.index))[0] as stranger:
        refused(comm, InvalidUsageError, "rank 0", lambda: comm.all_reduce([stranger.zeros(100), b]))


def test_counts_and_dtypes_that_differ(comm: vkpar.Communicator) -> None:
    first, second = comm.devices
    a, b = first.zeros(100), second.zeros(100)
    for other in (second.zeros(99), second.zeros(101), second.zeros(100, "float16"), second.zeros(100, "int32")):
        refused(comm, InvalidUsageError, "must agree", functools.partial(comm.all_reduce, [a, other]))
        refused(comm, InvalidUsageError, "must agree", functools.partial(comm.all_reduce, [a, b], out=[a, other]))
        refused(
            comm,
            InvalidUsageError,
            "must agree",
            functools.partial(comm.all_reduce, [a, other], out=[first.zeros(100), b]),
        )


def test_dtypes_that_are_not_summed(comm: vkpar.Communicator) -> None:
    for dtype in ("bool", "complex64", "complex128"):
        arrays = [device.zeros(100, dtype) for device in comm.devices]
        refused(comm, UnsupportedError, dtype, functools.partial(comm.all_reduce, arrays))


def test_nobody_contributes(comm: vkpar.Communicator) -> None:
    out = [device.zeros(100) for device in comm.devices]
    empty = [device.zeros(0) for device in comm.devices]
    for arrays in ([None, None], empty, [None, empty[1]]):
        refused(comm, InvalidUsageError, "no rank contributes", functools.partial(comm.all_reduce, arrays, out=out))


def test_no_destination(comm: vkpar.Communicator) -> None:
    a, b = (device.zeros(100) for device in comm.devices)
    refused(comm, InvalidUsageError, "rank 1 has no destination", lambda: comm.all_reduce([a, None]))
    refused(comm, InvalidUsageError, "rank 0 has no destination", lambda: comm.all_reduce([None, b], out=[None, b]))
    refused(comm, InvalidUsageError, "must agree", lambda: comm.all_reduce([a, comm.devices[1].zeros(0)]))


def test_out_that_overlaps_in_part(comm: vkpar.Communicator) -> None:
    wholes = [device.zeros(200) for device in comm.devices]
    for start in (1, 99):
        out = [whole[start : start + 100] for whole in wholes]
        refused(
            comm, InvalidUsageError, "overlaps", functools.partial(comm.all_reduce, [w[:100] for w in wholes], out=out)
        )
    comm.all_reduce([whole[:100] for whole in wholes], out=[whole[100:] for whole in wholes]).wait()


@pytest.mark.parametrize("wire", ["f8", "F16", 16, object()])
def test_unknown_wires(comm: vkpar.Communicator, wire: Any) -> None:
    arrays = [device.zeros(100) for device in comm.devices]
    refused(comm, InvalidUsageError, "wire", lambda: comm.all_reduce(arrays, wire=wire))
    with pytest.raises(InvalidUsageError, match="wire"):
        vkpar.Communicator(comm.devices, wire=wire)


def test_an_empty_wire(comm: vkpar.Communicator) -> None:
    arrays = [device.zeros(100) for device in comm.devices]
    refused(comm, InvalidUsageError, "wire", lambda: comm.all_reduce(arrays, wire=""))


@pytest.mark.parametrize("dtype", ["int32", "uint32", "float16", "bfloat16"])
def test_a_wire_for_what_travels_exactly(comm: vkpar.Communicator, dtype: str) -> None:
    arrays = [device.zeros(100, dtype) for device in comm.devices]
    for wire in ("f16", "bf16", "f32"):
        refused(comm, InvalidUsageError, "travels exactly", functools.partial(comm.all_reduce, arrays, wire=wire))


@pytest.mark.parametrize("op", ["median", "", "SUM", None, 3])
def test_unknown_ops(comm: vkpar.Communicator, op: Any) -> None:
    arrays = [device.zeros(100) for device in comm.devices]
    refused(comm, InvalidUsageError, "op", lambda: comm.all_reduce(arrays, op=op))


@pytest.mark.parametrize("options", [{"op": ["sum"]}, {"wire": ["f16"]}, {"wire": {}}])
def test_names_that_are_no_text(rigs: Rigs, options: dict[str, Any]) -> None:
    with vkpar.Communicator(devices_of(rigs, "LL")) as comm:
        arrays = [device.zeros(100) for device in comm.devices]
        with pytest.raises(InvalidUsageError):
            comm.all_reduce(arrays, **options)


@pytest.mark.parametrize("algorithm", ["butterfly", "", "Ring", None, 1])
def test_unknown_algorithms(comm: vkpar.Communicator, algorithm: Any) -> None:
    with pytest.raises(InvalidUsageError, match="auto, direct"):
        vkpar.Communicator(comm.devices, algorithm=algorithm)


def test_an_unknown_algorithm_of_the_environment(
    comm: vkpar.Communicator, settings_override: Callable[..., None]
) -> None:
    with pytest.raises(InvalidUsageError, match="VKPAR_ALGORITHM='butterfly'"):
        settings_override(algorithm="butterfly")
    settings_override(algorithm="ring")
    with vkpar.Communicator(comm.devices) as named:
        check_works(named)


def test_direct_on_two_drivers(rigs: Rigs) -> None:
    with vkpar.Communicator(devices_of(rigs, "LS"), algorithm="direct") as comm:
        arrays = [device.zeros(100) for device in comm.devices]
        refused(comm, InvalidUsageError, "same driver and device model", lambda: comm.all_reduce(arrays))


@pytest.mark.parametrize("transport", ["pigeon", "", None])
def test_unknown_transports(comm: vkpar.Communicator, transport: Any) -> None:
    with pytest.raises(InvalidUsageError, match="transport"):
        vkpar.Communicator(comm.devices, transport=transport)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("-inf")])
def test_bad_timeouts(comm: vkpar.Communicator, timeout: float) -> None:
    with pytest.raises(InvalidUsageError, match="timeout"):
        vkpar.Communicator(comm.devices, timeout=timeout)


@pytest.mark.parametrize("timeout", ["1", None])
def test_timeouts_that_are_no_number(rigs: Rigs, timeout: Any) -> None:
    with pytest.raises(InvalidUsageError):
        vkpar.Communicator(devices_of(rigs, "LL"), timeout=timeout)


def test_bad_lists_of_devices(comm: vkpar.Communicator) -> None:
    first, second = comm.devices
    for devices in ([], ["llvmpipe"], [first.info, second.info], [first, None]):
        with pytest.raises(InvalidUsageError, match="list of opened devices"):
            vkpar.Communicator(devices)  # type: ignore[arg-type]
    with pytest.raises(InvalidUsageError, match="twice"):
        vkpar.Communicator([first, second, first])


@pytest.mark.parametrize("devices", [None, "LL", 3])
def test_devices_that_are_no_list(devices: Any) -> None:
    with pytest.raises(InvalidUsageError):
        vkpar.Communicator(devices)


def test_one_device_instead_of_a_list(rigs: Rigs) -> None:
    with pytest.raises(InvalidUsageError, match="list of opened devices"):
        vkpar.Communicator(devices_of(rigs, "L")[0])  # type: ignore[arg-type]


def test_no_devices_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    import gc
    import sys

    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with pytest.raises(TypeError):
        vkpar.Communicator()  # type: ignore[call-arg]
    gc.collect()
    assert not ignored


def test_native_links_where_there_are_none(rigs: Rigs, settings_override: Callable[..., None]) -> None:
    devices = devices_of(rigs, "LS")
    settings_override(link="native")
    with pytest.raises(UnsupportedError, match="VKPAR_LINK=native: rank 0 to rank 1"):
        vkpar.Communicator(devices)


def test_a_closed_communicator(comm: vkpar.Communicator) -> None:
    arrays = [device.zeros(100) for device in comm.devices]
    other = vkpar.Communicator(comm.devices)
    other.all_reduce(arrays).wait()
    other.close()
    other.close()
    refused(comm, InvalidUsageError, "closed", lambda: other.all_reduce(arrays))
    refused(comm, InvalidUsageError, "closed", other.stats)


def test_work_outlives_its_communicator(comm: vkpar.Communicator) -> None:
    other = vkpar.Communicator(comm.devices)
    works = [other.all_reduce([device.zeros(100) for device in comm.devices]) for _ in range(2)]
    other.close()
    works[0].wait()
    assert works[1].done()
    assert works[1].exception() is None


@pytest.mark.parametrize("use", ["wait", "done", "exception"])
def test_work_outlives_its_devices(comm: vkpar.Communicator, use: str) -> None:
    """It was done when they closed; a typed error would do too."""
    devices = [vkpar.open_devices(str(device.info.index))[0] for device in comm.devices]
    work = vkpar.Communicator(devices).all_reduce([device.zeros(100) for device in devices])
    for device in devices:
        device.close()
    with contextlib.suppress(InvalidUsageError):
        assert getattr(work, use)() in (None, True)


@pytest.mark.parametrize("letters", ["LL", "LS"])
def test_a_closed_device(rigs: Rigs, letters: str) -> None:
    opened = [vkpar.open_devices(str(device.info.index))[0] for device in devices_of(rigs, letters)]
    comm = vkpar.Communicator(opened)
    arrays = [device.array(np.ones(100, np.float32)) for device in opened]
    comm.all_reduce(arrays)
    opened[1].close()
    with pytest.raises(InvalidUsageError, match="closed"):
        comm.all_reduce(arrays)
    with pytest.raises(InvalidUsageError, match="closed"):
        arrays[1].numpy()
    with pytest.raises(InvalidUsageError, match="closed"):
        vkpar.Communicator(opened)
    assert np.all(arrays[0].numpy() == 2)
    comm.close()
    opened[0].close()
