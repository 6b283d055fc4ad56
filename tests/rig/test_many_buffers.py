"""Collectives over arrays that lie in several buffers, and that no kernel binds whole: exact, wherever views begin."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from conftest import Rigs, require
from helpers.ops.reducing import POOLS
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import env

pytestmark = pytest.mark.rig
FORMATS = [("float32", "f16"), ("float32", "f32"), ("float16", None), ("int32", None)]
ALGORITHMS = ("ring", "two_shot", "tree", "naive")


@pytest.fixture(scope="module", params=[8192, 1 << 19])
def small(request: pytest.FixtureRequest, rigs: Rigs) -> Iterator[list[vkpar.Device]]:
    """Three devices of two drivers with small sub-buffers, and bindings that hold the slots and little more."""
    require("swiftshader")
    selector = f"{POOLS['L'].split('*')[0]}*2&swiftshader" if "&" not in POOLS["L"] else "0&1&swiftshader"
    with env.override(max_buffer=request.param, max_binding=1 << 20):
        devices = vkpar.open_devices(selector)
    yield devices
    for device in devices:
        device.close()


def views(
    data: st.DataObject, devices: list[vkpar.Device], host: list[np.ndarray], dtype: str, *, odd: bool
) -> list[vkpar.Array]:
    """Return a view on each device that holds its part of ``host``, somewhere in a larger array."""
    made = []
    for device, values in zip(devices, host, strict=True):
        before = data.draw(st.integers(0, 9)) if odd else 256 * data.draw(st.integers(0, 2))
        around = device.zeros(before + values.size + 5, dtype)
        around[before : before + values.size].write(values)
        made.append(around[before : before + values.size])
    return made


@pytest.mark.sampled(97)
@given(st.data())
def test_reductions(small: list[vkpar.Device], data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    count = data.draw(st.sampled_from([1000, 5000, 20_001, 300_000]))
    dtype, wire = data.draw(
        st.sampled_from([("float32", "f16"), ("float32", "f32"), ("float16", None), ("int32", None)])
    )
    host = [rng.integers(-50, 50, count).astype(dtype) for _ in small]
    want = np.sum(host, axis=0, dtype=np.float64)
    algorithm = data.draw(st.sampled_from(ALGORITHMS))
    with vkpar.Communicator(small, algorithm=algorithm, timeout=60) as comm:
        arrays = views(data, small, host, dtype, odd=data.draw(st.booleans()))
        comm.all_reduce(arrays, wire=wire).wait()
        for array in arrays:
            np.testing.assert_array_equal(array.numpy().astype(np.float64), want)
        arrays = views(data, small, host, dtype, odd=False)
        parts = np.array_split(want, len(small))
        out = [device.empty(part.size, dtype) for device, part in zip(small, parts, strict=True)]
        comm.reduce_scatter(arrays, out=out, wire=wire).wait()
        for array, part in zip(out, parts, strict=True):
            np.testing.assert_array_equal(array.numpy().astype(np.float64), part)


@given(st.data())
def test_movements(small: list[vkpar.Device], data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    count, dtype = data.draw(st.integers(1, 40_000)), data.draw(st.sampled_from(["uint8", "float16", "complex128"]))
    itemsize = np.dtype(dtype).itemsize
    host = [rng.integers(0, 256, count * itemsize, np.uint8).view(dtype) for _ in small]
    n = len(small)
    with vkpar.Communicator(small, timeout=60) as comm:
        arrays = views(data, small, host, dtype, odd=True)
        out = views(data, small, [np.zeros(n * count, dtype)] * n, dtype, odd=True)
        comm.all_gather(arrays, out=out).wait()
        for array in out:
            assert array.numpy().tobytes() == np.concatenate(host).tobytes()
        root = data.draw(st.integers(0, n - 1))
        comm.broadcast(arrays, root).wait()
        vkpar.copy(arrays[0], arrays[1])
        for array in arrays:
            assert array.numpy().tobytes() == host[root].tobytes()


def test_an_array_beyond_the_real_binding_limit(rigs: Rigs) -> None:
    """307 MiB a rank on lavapipe, whose bindings end at 128 MiB."""
    devices = rigs("llvmpipe*2")
    count = devices[0].limits.max_storage_buffer_range * 12 // 5 // 4
    with vkpar.Communicator(devices) as comm:
        arrays = [device.zeros(count) for device in devices]
        places = [0, (1 << 25) - 500, (1 << 26) - 500, count - 1000]
        for rank, array in enumerate(arrays):
            for place in places:
                array[place : place + 1000].write(np.arange(1000, dtype=np.float32) + rank)
        comm.all_reduce(arrays).wait()
        for array in arrays:
            for place in places:
                np.testing.assert_array_equal(array[place : place + 1000].numpy(), 2 * np.arange(1000) + 1)
            array.close()
