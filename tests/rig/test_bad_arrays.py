"""Arguments that are no arrays, copies that overlap, and settings that do not fit the ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from conftest import Rigs, require
from helpers.ops.reducing import devices_of

import vkpar
from vkpar import InvalidUsageError, OperandError, UnsupportedError

pytestmark = pytest.mark.rig


@pytest.mark.parametrize(
    "call",
    [
        lambda a: vkpar.add(a, None),
        lambda a: vkpar.add(None, a),
        lambda a: vkpar.add(None, None),
        lambda a: vkpar.add(None, None, out=a),
        lambda a: vkpar.matmul(None, None),
        lambda a: vkpar.matmul(a, None),
        lambda a: vkpar.cast(None, "f4"),
        lambda a: vkpar.cast(None, "f4", out=a),
        lambda a: vkpar.add(a, a, out=[a]),
    ],
)
def test_operands_that_are_no_arrays(rigs: Rigs, call: Callable[[Any], object]) -> None:
    for device in devices_of(rigs, "LS"):
        a = device.zeros((4, 4))
        submitted = device.logical.compute.last
        with pytest.raises(
            (InvalidUsageError, OperandError), match=r"has to be a vkpar\.Array, not|takes arrays of .*, not"
        ):
            call(a)
        assert device.logical.compute.last == submitted


def test_more_ranks_than_one_kernel_sums() -> None:
    require("llvmpipe")
    with ExitStack() as stack:
        devices = [stack.enter_context(device) for device in vkpar.open_devices("llvmpipe*17")]
        for algorithm in ("two_shot", "direct", "naive"):
            comm = stack.enter_context(vkpar.Communicator(devices, algorithm=algorithm))
            arrays = [device.array(np.ones(10, np.float32)) for device in devices]
            with pytest.raises(UnsupportedError, match=f"{algorithm} sums at most 16 ranks; there are 17"):
                comm.all_reduce(arrays)


def test_staging_larger_than_a_rank_can_bind(rigs: Rigs, settings_override: Callable[..., None]) -> None:
    devices = devices_of(rigs, "LS")
    settings_override(staging_bytes=min(device.limits.max_storage_buffer_range for device in devices) + (1 << 20))
    with vkpar.Communicator(devices, wire="f32") as comm:
        arrays = [device.array(np.full(1_000_003, rank + 1, np.float32)) for rank, device in enumerate(devices)]
        comm.all_reduce(arrays).wait()
        assert all(np.all(array.numpy() == 3) for array in arrays)


def test_one_rank_waits_for_what_it_reduces_in_place(rigs: Rigs) -> None:
    devices = rigs("llvmpipe*1")
    with vkpar.Communicator(devices) as comm:
        square = devices[0].array(np.ones((256, 256), np.float32))
        product = vkpar.matmul(square, square)
        wanted = devices[0].logical.compute.last
        comm.all_reduce([product]).wait()
        assert devices[0].logical.compute.reached >= wanted


@pytest.mark.parametrize("selector", [["llvmpipe"], 1.5, b"llvmpipe"])
def test_selectors_that_are_no_text(selector: object) -> None:
    with pytest.raises(vkpar.InvalidUsageError, match="selector is an index or text"):
        vkpar.open_devices(selector)  # type: ignore[arg-type]
