"""Graphs of one device: a launch does what the operations do, whatever happens before, between and after."""

from __future__ import annotations

import gc
import inspect
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from helpers.graph.graphs import Machine, check, program
from helpers.process.children import check_child, child_environment
from helpers.process.interrupting import Interrupt
from helpers.process.threads import in_threads
from helpers.vulkan.handles import held
from helpers.vulkan.parking import parked
from helpers.vulkan.replacing import Functions, replace_functions
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import DeviceLostError, InvalidUsageError, VulkanError, env
from vkpar.vulkan import capturing
from vkpar.vulkan.pump.ports import QueueHandles

pytestmark = [pytest.mark.device, pytest.mark.sampled(6), pytest.mark.usefixtures("compiler")]
TESTS = str(Path(__file__).parents[1])


@pytest.fixture
def fresh(reopen: Callable[..., vkpar.Device]) -> vkpar.Device:
    """The device, opened anew."""
    return reopen()


def ones(device: vkpar.Device, count: int = 100) -> vkpar.Array:
    return device.array(np.ones(count, np.float32))


# ---- replay equals eager ----


@given(st.integers(0, 1 << 30))
def test_random_programs(device: vkpar.Device, seed: int) -> None:
    """Views, in place, fresh results that are dropped, casts, products, kernels, fills, parameters that change."""
    check(Machine([device]), Machine([device]), program(seed)).close()


def test_random_programs_with_work_between(device: vkpar.Device) -> None:
    """What runs between launches has arrays and memory of its own."""

    def between(turn: int, machine: Machine) -> None:
        vkpar.add(machine.ints[0][0], machine.ints[0][turn % 3], out=machine.ints[0][0])
        for count in (1, 64, 100, 700):
            device.array(np.full(count, turn, np.float32)).fill_zeros()
        machine.floats[0].write(np.full(700, turn, np.float32))

    for seed in range(10):
        check(Machine([device]), Machine([device]), program(seed), 4, between).close()


@pytest.mark.parametrize("debug", ["barriers", "alignment", "memory"])
def test_the_checks_change_nothing(device: vkpar.Device, reopen: Callable[..., vkpar.Device], debug: str) -> None:
    with env.override(debug=debug):
        careful = reopen()
        for seed in range(8):
            check(Machine([device]), Machine([careful]), program(seed)).close()


def test_a_full_barrier_everywhere_where_asked(fresh: vkpar.Device, reopen: Callable[..., vkpar.Device]) -> None:
    def barriers(device: vkpar.Device) -> int:
        a, outs = ones(device), [ones(device) for _ in range(10)]
        with vkpar.capture(device) as graph:
            for out in outs:
                vkpar.add(a, a, out=out)
        return graph.stats().barriers

    with env.override(debug="barriers"):
        careful = reopen()
    assert (barriers(fresh), barriers(careful)) == (1, 11)


SINGLE = ("abs", "exp", "gelu", "log", "negative", "relu", "rsqrt", "sigmoid", "silu", "sqrt", "tanh")
SINGLE += ("log_softmax", "softmax", "max", "mean", "min", "sum", "argmax", "argmin")
PAIRS = ("add", "divide", "maximum", "minimum", "multiply", "pow", "subtract", "swiglu")
PAIRS += ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
WHOLE = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")  # numbers
MORE = (
    "arccos",
    "arcsin",
    "arctan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "exp2",
    "expm1",
    "floor",
    "isfinite",
    "isinf",
    "isnan",
)
MORE += (
    "log10",
    "log1p",
    "log2",
    "logical_not",
    "reciprocal",
    "round",
    "sign",
    "sin",
    "sinh",
    "square",
    "tan",
    "trunc",
)
MORE += (
    "all",
    "any",
    "argsort",
    "count_nonzero",
    "cumprod",
    "cumsum",
    "logsumexp",
    "norm",
    "prod",
    "sort",
    "std",
    "var",
)
MORE += ("flip", "squeeze", "tril", "triu")
MORE_PAIRS = ("arctan2", "floor_divide", "hypot", "logical_and", "logical_or", "logical_xor", "mod")
NEW: dict[str, Callable[..., Any]] = {
    **{name: lambda x, w, v, i, name=name: vkpar.add(getattr(vkpar, name)(x), 0) for name in MORE},
    **{name: lambda x, w, v, i, name=name: getattr(vkpar, name)(x, x) for name in MORE_PAIRS},
    **{name: lambda x, w, v, i, name=name: getattr(vkpar, name)(i, i) for name in WHOLE},
    "invert": lambda x, w, v, i: vkpar.invert(i),
    "clip": lambda x, w, v, i: vkpar.clip(x, -0.5, v),
    "avg_pool2d": lambda x, w, v, i: vkpar.avg_pool2d(x.reshape(1, 2, 16, 16), 2),
    "max_pool2d": lambda x, w, v, i: vkpar.max_pool2d(x.reshape(1, 2, 16, 16), 2),
    "conv2d": lambda x, w, v, i: vkpar.conv2d(x.reshape(1, 2, 16, 16), w.reshape(-1)[:36].reshape(2, 2, 3, 3)),
    "einsum": lambda x, w, v, i: vkpar.einsum("ij,jk->ki", x, w),
    "outer": lambda x, w, v, i: vkpar.outer(v, x[0]),
    "empty_like": lambda x, w, v, i: vkpar.add(x, x, out=vkpar.empty_like(x)),
    "full_like": lambda x, w, v, i: vkpar.add(vkpar.full_like(x, 2), x),
    "ones_like": lambda x, w, v, i: vkpar.add(vkpar.ones_like(x), x),
    "zeros_like": lambda x, w, v, i: vkpar.add(vkpar.zeros_like(x), x),
    "eye": lambda x, w, v, i: vkpar.add(vkpar.eye(x.device, 64), w),
    "linspace": lambda x, w, v, i: vkpar.add(vkpar.linspace(x.device, 0, 1, 64), v),
    "expand_dims": lambda x, w, v, i: vkpar.add(vkpar.expand_dims(v, 0), x),
    "one_hot": lambda x, w, v, i: vkpar.one_hot(i, 9),
    "pad": lambda x, w, v, i: vkpar.pad(x, 1),
    "repeat": lambda x, w, v, i: vkpar.repeat(x, 2, 0),
    "roll": lambda x, w, v, i: vkpar.add(vkpar.roll(x, 3, 1), 0),
    "scatter_add": lambda x, w, v, i: vkpar.scatter_add(x, 1, i.reshape(8, 1), w),
    "take_along_axis": lambda x, w, v, i: vkpar.take_along_axis(x, i.reshape(8, 1), 1),
    "tile": lambda x, w, v, i: vkpar.tile(x, 2),
    "topk": lambda x, w, v, i: vkpar.topk(x, 3),
}
TOGETHER = [tuple(NEW)[at : at + 12] for at in range(0, len(NEW), 12)]
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: lambda x, w, v, i, name=name: getattr(vkpar, name)(x) for name in SINGLE},
    **{name: lambda x, w, v, i, name=name: getattr(vkpar, name)(x, x) for name in PAIRS},
    "attention": lambda x, w, v, i: vkpar.attention(*[x.reshape(2, 4, 64)] * 3, causal=True),
    "rope": lambda x, w, v, i: vkpar.rope(x.reshape(1, 8, 64), i),
    "arange": lambda x, w, v, i: vkpar.add(x.device.arange(0, 64, dtype="float32"), v),
    "broadcast_to": lambda x, w, v, i: vkpar.add(vkpar.broadcast_to(v, (8, 64)), x),
    "cast": lambda x, w, v, i: vkpar.cast(x, "float16"),
    "concatenate": lambda x, w, v, i: vkpar.concatenate([x, w, x]),
    "split": lambda x, w, v, i: vkpar.add(*vkpar.split(x, 2, 1)),
    "stack": lambda x, w, v, i: vkpar.stack([x, x], 1),
    "contiguous": lambda x, w, v, i: vkpar.contiguous(w.T),
    "cross_entropy": lambda x, w, v, i: vkpar.cross_entropy(x, i),
    "cross_entropy_grad": lambda x, w, v, i: vkpar.cross_entropy_grad(x, i),
    "full": lambda x, w, v, i: vkpar.add(x.device.full(64, 2.5), v),
    "layer_norm": lambda x, w, v, i: vkpar.layer_norm(x, v, v),
    "layer_norm_grad": lambda x, w, v, i: vkpar.layer_norm_grad(x, v, x),
    "matmul": lambda x, w, v, i: (vkpar.matmul(x, w), vkpar.matmul(x[:1], w), vkpar.matmul(x, x, transpose_b=True)),
    "rms_norm": lambda x, w, v, i: (vkpar.rms_norm(x, v), *vkpar.rms_norm(x, v, residual=x)),
    "rms_norm_grad": lambda x, w, v, i: vkpar.rms_norm_grad(x, v, x),
    "take": lambda x, w, v, i: vkpar.take(w, i),
    "transpose": lambda x, w, v, i: vkpar.add(vkpar.transpose(w), w),
    "where": lambda x, w, v, i: vkpar.where(vkpar.greater(x, v), x, v),
}
BESIDES: dict[str, Callable[..., Any]] = {
    "reductions along axes": lambda x, w, v, i: (vkpar.sum(x, 0), vkpar.sum(w, 1), vkpar.max(w, (0, 1))),
    "operators": lambda x, w, v, i: -(x @ w * 2 + v) / (1 + abs(x)),
    "an expression": lambda x, w, v, i: vkpar.elementwise("y = max(a, b) * 3.0")(a=x, b=x),
    "random": lambda x, w, v, i: vkpar.random.Generator(5).uniform(x.device, 100),
    "a fill": lambda x, w, v, i: filled(x.copy()),
    "elements of 64 bits": lambda x, w, v, i: wide(x),
}


def wide(x: vkpar.Array) -> tuple[vkpar.Array, ...]:
    """Do what there is for types of 64 bits, where the device computes them; conversions are everywhere."""
    made = [vkpar.cast(vkpar.cast(x, "int64"), "float32")]
    kinds = (("int64", x.device.info.features.int64), ("float64", x.device.info.features.float64))
    for y in (vkpar.cast(x, dtype) for dtype, computed in kinds if computed):
        made += [y * y - 3, vkpar.maximum(y, 0), vkpar.cast(y < y[:1], "int32"), vkpar.where(x > 0, y, 1), -y]
        made += [y.sum(), y.sum(0), y.max(1), y.argmin(1), vkpar.cumsum(y, 1), vkpar.cast(y, "int8"), y.clip(0, 2)]
        made += [vkpar.scatter_add(y, 1, vkpar.cast(vkpar.cast(x, "int32"), "int64"), y)]
    return tuple(made)


def filled(array: vkpar.Array) -> vkpar.Array:
    array[2:4].fill(3.5)
    return array


def test_every_operation_is_listed() -> None:
    functions = [getattr(vkpar, name) for name in vkpar.__all__ if inspect.isfunction(getattr(vkpar, name))]
    found = {one.__name__ for one in functions if one.__module__.startswith("vkpar.ops.")}
    # Which make weights, out of bytes of the host, and functions; and one whose results the host has to count.
    others = {"quantized", "elementwise", "nonzero"}
    assert found - others == set(OPERATIONS) | set(NEW)


@pytest.mark.parametrize("names", [*((name,) for name in (*OPERATIONS, *BESIDES)), *TOGETHER], ids=" ".join)
def test_every_operation(device: vkpar.Device, rng: np.random.Generator, names: tuple[str, ...]) -> None:
    """A launch makes the same bits as the operations, of what their operands hold by then."""
    x, w, v = (device.empty(shape, "float32") for shape in ((8, 64), (64, 64), 64))
    i = device.array(np.arange(8, dtype=np.int32))

    def run() -> list[vkpar.Array]:
        made = [{**OPERATIONS, **BESIDES, **NEW}[name](x, w, v, i) for name in names]
        return [array for each in made for array in (each if isinstance(each, tuple) else (each,))]

    with vkpar.capture(device) as graph:
        captured = run()
    for _ in range(2):
        for array in (x, w, v):
            array.write(rng.standard_normal(array.shape).astype(np.float32))
        eager = run()
        graph.launch()
        assert [array.numpy().tobytes() for array in captured] == [array.numpy().tobytes() for array in eager]
    graph.close()


def test_several_graphs_in_turns(device: vkpar.Device) -> None:
    eager, captured = Machine([device]), Machine([device])
    programs = [program(seed, steps=10) for seed in range(4)]
    graphs = []
    for steps in programs:
        with vkpar.capture(device) as graph:
            captured.run(steps)
        graphs.append(graph)
    for number in (0, 1, 2, 3, 3, 1, 0, 2):
        graphs[number].launch()
        eager.run(programs[number])
    assert captured.contents() == eager.contents()
    for graph in graphs:
        graph.close()


def test_arrays_over_several_buffers(reopen: Callable[..., vkpar.Device]) -> None:
    with env.override(max_buffer=4096, max_binding=4096):
        device = reopen()
        a, b, out = (device.array(np.arange(3000, dtype=np.float32) + k) for k in range(3))
        with vkpar.capture(device) as graph:
            made = vkpar.add(a, b)
            vkpar.copy(vkpar.add(made, a), out)
            zeros = device.zeros(3000)
            vkpar.add(zeros, out, out=out)
        for turn in range(3):
            a.write(np.arange(3000, dtype=np.float32) * turn)
            graph.launch()
            assert np.array_equal(out.numpy(), 2.0 * np.arange(3000) * turn + np.arange(3000) + 1)
        graph.close()


SYNCHRONIZATION = """
import sys
sys.path.insert(0, sys.argv[1])
from helpers.graph.graphs import Machine, check, program
import vkpar
(device,) = vkpar.open_devices(sys.argv[2])
for seed in range(12):
    check(Machine([device]), Machine([device]), program(seed), 2).close()
device.close()
"""


def test_synchronization_validation(device: vkpar.Device) -> None:
    if not env.get().validation:
        pytest.skip("no validation layer")
    variables = {
        "VKPAR_VALIDATION": "1",
        "VK_LAYER_ENABLES": "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT",
    }
    environment = child_environment(**variables)
    check_child(SYNCHRONIZATION, TESTS, str(device.info.index), environment=environment, timeout=180)


# ---- memory ----


def test_dropped_memory_stays_with_the_graph(device: vkpar.Device) -> None:
    """No later array lies where a graph's temporary lay, while the graph lives."""
    a, out = ones(device, 3000), ones(device, 3000)
    with vkpar.capture(device) as graph:
        for _ in range(5):
            vkpar.copy(vkpar.add(vkpar.add(a, a), a), out)
    gc.collect()
    canaries = [device.array(np.full(3000, 7, np.float32)) for _ in range(40)]
    for _ in range(3):
        graph.launch()
    assert np.all(out.numpy() == 3)
    assert all(np.all(canary.numpy() == 7) for canary in canaries)
    graph.close()


def test_temporaries_share_memory(fresh: vkpar.Device) -> None:
    """A chain of a hundred fresh results takes the memory of a few."""
    device, a = fresh, ones(fresh, 100_000)
    before = device.memory().arrays
    with vkpar.capture(device) as graph:
        made = a
        for _ in range(100):
            made = vkpar.add(made, a)
    del made
    assert device.memory().arrays - before <= 4 * 400_128
    graph.close()
    device.synchronize()
    assert device.memory().arrays == before


def test_what_a_graph_names_stays(device: vkpar.Device) -> None:
    """Arrays and kernels that are dropped, or closed, after the capture live on in the graph."""
    source = """#version 450
    layout(local_size_x = 64) in;
    layout(binding = 0) buffer A { float a[]; };
    void main() { if (gl_GlobalInvocationID.x < a.length()) a[gl_GlobalInvocationID.x] += 1.0; }
    """
    kernel, other = vkpar.Kernel(device, source), vkpar.Kernel(device, source.replace("1.0", "2.0"))
    a, b, out = ones(device), ones(device), device.zeros(100)
    with vkpar.capture(device) as graph:
        kernel(2, a)
        other(2, a)
        vkpar.add(a, b, out=out)
    a.close()
    kernel.close()
    del a, b, kernel, other
    gc.collect()
    canaries = [device.array(np.full(100, 9, np.float32)) for _ in range(20)]
    device.logical.reap(everything=True)
    for turn in range(1, 4):
        graph.launch()
        assert np.all(out.numpy() == 2 + 3 * turn)
    assert all(np.all(canary.numpy() == 9) for canary in canaries)
    graph.close()


def test_arrays_of_a_graph_may_outlive_it(device: vkpar.Device) -> None:
    a = ones(device)
    with vkpar.capture(device) as graph:
        made = vkpar.add(a, a)
    graph.launch()
    graph.close()
    canaries = [device.array(np.full(100, 9, np.float32)) for _ in range(20)]
    assert np.all(made.numpy() == 2)
    assert len(canaries) == 20
    assert np.all(vkpar.add(made, made).numpy() == 4)


def test_another_thread_works_on_while_one_captures(device: vkpar.Device) -> None:
    """Its operations run, and its arrays lie in other memory than the graph's."""
    a, out = ones(device, 500), ones(device, 500)
    theirs: list[vkpar.Array] = []

    def work(_: int) -> None:
        for turn in range(20):
            made = device.array(np.full(500, turn, np.float32))
            total = vkpar.add(vkpar.add(made, made), made)
            assert np.all(total.numpy() == 3 * turn)
            if turn % 4 == 0:
                theirs.append(total)

    with vkpar.capture(device) as graph:
        vkpar.copy(vkpar.add(vkpar.add(a, a), a), out)
        in_threads(work, 1)
        vkpar.copy(vkpar.add(vkpar.add(out, a), a), out)
    kept = [array.numpy() for array in theirs]
    for _ in range(3):
        graph.launch()
    assert np.all(out.numpy() == 5)
    assert all(np.array_equal(array.numpy(), was) for array, was in zip(theirs, kept, strict=True))
    graph.close()


# ---- parameters ----


def test_parameters(device: vkpar.Device) -> None:
    out = device.zeros(1)
    with vkpar.capture(device) as graph:
        (x,) = graph.param("x", "float32", 1.5)
        (y,) = graph.param("y", "float32")
        vkpar.add(x, y, out=out)
    seen = []
    for values in ({}, {"y": 2}, {}, {"x": -1, "y": 0.25}, {"x": -1}):
        graph.launch(**values)
        seen.append(out.numpy()[0])
    assert seen == [1.5, 3.5, 3.5, -0.75, -0.75]
    graph.close()


def test_a_parameter_lies_where_nothing_else_of_the_graph_lay(device: vkpar.Device) -> None:
    """Also in memory that a temporary of the graph gave back before."""
    one, out = device.array(np.ones(1, np.uint32)), device.zeros(1, "uint32")
    with vkpar.capture(device) as graph:
        vkpar.add(one, one).close()
        (x,) = graph.param("x")
        vkpar.add(one, one).close()
        vkpar.add(x, one, out=out)
    for value in (5, 5, 8):
        graph.launch(x=value)
        assert out.numpy()[0] == value + 1
    graph.close()


@pytest.mark.parametrize("debug", ["", "memory"])
def test_parameters_that_no_operation_reads(reopen: Callable[..., vkpar.Device], debug: str) -> None:
    """A launch sets them on every device, those too that have nothing to do."""
    with env.override(debug=debug):
        devices = [reopen(), reopen()]
        a = ones(devices[0])
        with vkpar.capture(devices) as graph:
            xs = graph.param("x", "int32", -3)
            vkpar.add(a, a, out=a)
        for value in (-3, 4, -5):
            graph.launch(x=value)
            assert [x.numpy()[0] for x in xs] == [value] * 2
        assert graph.stats().stretches == 2


def test_a_hundred_launches_queued(device: vkpar.Device) -> None:
    """None waits for another; the parameters of each are its own."""
    total = device.zeros(1, "uint32")
    with vkpar.capture(device) as graph:
        (x,) = graph.param("x")
        vkpar.add(total, x, out=total)
    works = [graph.launch(x=value) for value in range(100)]
    works[-1].wait(60)
    assert total.numpy()[0] == sum(range(100))
    assert all(work.done() for work in works)
    graph.close()


def test_four_launches_with_values_do_not_wait(fresh: vkpar.Device) -> None:
    total = fresh.zeros(1, "uint32")
    with vkpar.capture(fresh) as graph:
        (x,) = graph.param("x")
        vkpar.add(total, x, out=total)
    graph.launch(x=1).wait()
    with parked(fresh) as release:
        works = [graph.launch(x=value) for value in (10, 100, 1000)]
        works += [graph.launch() for _ in range(20)]  # values that stay need no cell
        assert not any(work.done() for work in works)
        assert works[0].exception() is None
        with pytest.raises(vkpar.WaitTimeoutError):
            works[0].wait(0.05)
        release()
        works[-1].wait(60)
    assert total.numpy()[0] == 1 + 10 + 100 + 21 * 1000
    graph.close()


@pytest.mark.parametrize("value", [-1, 1 << 32, 1.5, "1", None])
def test_values_that_a_parameter_cannot_hold(device: vkpar.Device, value: Any) -> None:
    with vkpar.capture(device) as graph:
        (x,) = graph.param("x")
    with pytest.raises(InvalidUsageError, match="x"):
        graph.launch(x=value)
    graph.launch(x=7)
    assert x.numpy()[0] == 7
    graph.close()


def test_bad_parameters(device: vkpar.Device) -> None:
    with vkpar.capture(device) as graph:
        (x,) = graph.param("x", "float32", 2)
        for name in ("x", "not a name", "", 3, "class", "self"):
            with pytest.raises(InvalidUsageError, match="name"):
                graph.param(name)  # type: ignore[arg-type]
        for dtype in ("float16", "int64", "bool"):
            with pytest.raises(InvalidUsageError, match="uint32, int32, float32"):
                graph.param("y", dtype)
        with pytest.raises(InvalidUsageError, match="y is a number"):
            graph.param("y", "float32", 1e300)
        with pytest.raises(InvalidUsageError, match="y is int32, from -2147483648"):
            graph.param("y", "int32", 1 << 31)
    with pytest.raises(InvalidUsageError, match="no parameter 'z'; it has x"):
        graph.launch(z=1)
    with pytest.raises(InvalidUsageError, match="inside the capture"):
        graph.param("y")
    graph.launch()
    assert x.numpy()[0] == 2
    graph.close()


# ---- what cannot be captured ----


def refused() -> dict[str, Callable[[vkpar.Device, vkpar.Array], object]]:
    """Return what raises inside a capture."""
    host = np.zeros(100, np.float32)
    return {
        "read": lambda device, a: a.numpy(),
        "read a region": lambda device, a: a.read((slice(0, 9, 2),)),
        "item": lambda device, a: float(a[:1]),
        "asarray": lambda device, a: np.asarray(a),
        "write": lambda device, a: a.write(host),
        "write a region": lambda device, a: a.write(host[:5], (slice(0, 9, 2),)),
        "array": lambda device, a: device.array(host),
        "synchronize": lambda device, a: device.synchronize(),
        "capture": lambda device, a: vkpar.capture(device).__enter__(),
        "read into host memory": lambda device, a: a.read(out=vkpar.host_array(100, "float32", device)),
    }


@pytest.mark.parametrize("what", refused())
def test_what_raises_inside(device: vkpar.Device, what: str) -> None:
    """It raises, changes nothing, and the capture goes on."""
    a, out = ones(device), device.zeros(100)
    before = a.numpy()
    with vkpar.capture(device) as graph:
        vkpar.add(a, a, out=out)
        with pytest.raises(InvalidUsageError, match=r"capture"):
            refused()[what](device, a)
        vkpar.add(out, a, out=out)
    assert not out.numpy().any()
    graph.launch()
    assert np.all(out.numpy() == 3)
    assert np.array_equal(a.numpy(), before)
    graph.close()


def test_an_array_prints_its_state_inside(device: vkpar.Device) -> None:
    a = ones(device)
    with vkpar.capture(device) as graph:
        assert "inside vkpar.capture" in str(a)
    graph.close()


def test_copies_to_other_devices_raise(reopen: Callable[..., vkpar.Device]) -> None:
    one, two = reopen(), reopen()
    a, b = ones(one), ones(two)
    with vkpar.capture(one) as graph:
        for act in (lambda: a.to(two), lambda: b.to(one), lambda: vkpar.copy(a, b)):
            with pytest.raises(InvalidUsageError, match="without their communicator"):
                act()
        vkpar.add(b, b, out=b)  # another device's: it runs
        assert np.all(b.numpy() == 2)
    assert graph.stats().operations == 0


def test_bad_arguments(device: vkpar.Device, reopen: Callable[..., vkpar.Device]) -> None:
    closed = reopen()
    closed.close()
    for devices in ([], [device, device], [closed], ["0"], [device, None]):
        with pytest.raises(InvalidUsageError):
            vkpar.capture(devices)  # type: ignore[arg-type]
    with pytest.raises(InvalidUsageError, match=r"vkpar\.Communicator, not str"):
        vkpar.capture(device, comm="comm")
    with vkpar.capture(device) as graph:
        with pytest.raises(InvalidUsageError, match="inside vkpar"):
            graph.launch()
        assert repr(graph) == "<vkpar.Graph, capturing>"
    with pytest.raises(TypeError):
        graph.launch(3)  # type: ignore[call-arg]
    graph.close()


# ---- what ends a capture ----


def test_an_exception_inside_records_nothing(fresh: vkpar.Device) -> None:
    a = ones(fresh)
    vkpar.add(a, a)
    fresh.synchronize()
    before = held([fresh])
    graphs = []

    def fail() -> None:
        with vkpar.capture(fresh) as graph:
            graphs.append(graph)
            vkpar.add(a, a)
            graph.param("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    (graph,) = graphs
    assert capturing.current() is None
    with pytest.raises(InvalidUsageError, match="ended by an exception"):
        graph.launch()
    assert repr(graph) == "<vkpar.Graph, not recorded>"
    vkpar.add(a, a, out=a)
    assert np.all(a.numpy() == 2)
    assert held([fresh]) == before
    graph.close()


def test_an_empty_capture(device: vkpar.Device) -> None:
    with vkpar.capture(device) as graph:
        pass
    work = graph.launch()
    work.wait()
    assert work.done()
    assert work.exception() is None
    stats = graph.stats()
    assert (stats.operations, stats.stretches, stats.barriers, stats.launches) == (0, 0, 0, 1)
    graph.close()
    with pytest.raises(InvalidUsageError, match="closed"):
        graph.launch()
    assert graph.closed


def test_a_graph_closed_inside_its_capture(device: vkpar.Device) -> None:
    a = ones(device)
    capture = vkpar.capture(device)
    graph = capture.__enter__()
    graph.close()
    vkpar.add(a, a, out=a)
    with pytest.raises(InvalidUsageError, match="closed inside its capture"):
        capture.__exit__(None, None, None)
    with pytest.raises(InvalidUsageError, match="nothing was recorded"):
        graph.launch()
    assert np.all(a.numpy() == 1)
    vkpar.add(a, a, out=a)
    assert np.all(a.numpy() == 2)


def test_a_device_closed_inside_the_capture(reopen: Callable[..., vkpar.Device]) -> None:
    one, two = reopen(), reopen()
    a, b = ones(one), ones(two)
    capture = vkpar.capture([one, two])
    capture.__enter__()
    vkpar.add(a, a, out=a)
    one.close()
    vkpar.add(b, b, out=b)
    with pytest.raises(InvalidUsageError, match="closed"):
        capture.__exit__(None, None, None)
    assert np.all(b.numpy() == 1)  # nothing was recorded, nothing has run
    vkpar.add(b, b, out=b)
    assert np.all(b.numpy() == 2)
    with vkpar.capture(two) as graph:
        vkpar.add(b, b, out=b)
    graph.launch()
    assert np.all(b.numpy() == 4)


def test_a_device_closed_before_its_graph(reopen: Callable[..., vkpar.Device]) -> None:
    device = reopen()
    a = ones(device)
    with vkpar.capture(device) as graph:
        vkpar.add(a, a, out=a)
    work = graph.launch()
    device.close()
    assert graph.closed
    for act in (graph.launch, work.wait):
        with pytest.raises(InvalidUsageError, match="closed"):
            act()
    graph.close()


def test_graphs_that_are_dropped(fresh: vkpar.Device) -> None:
    """While a launch is under way, too; the next capture, or the close of the device, frees them."""
    a = ones(fresh)
    fresh.synchronize()

    def use() -> None:
        with vkpar.capture(fresh) as graph:
            vkpar.add(a, a, out=a)
            graph.param("x")
        graph.launch()

    use()
    vkpar.device.close_orphans()
    fresh.synchronize()
    before, memory = held([fresh]), fresh.memory().used
    for _ in range(5):
        use()
    with parked(fresh) as release:
        use()
        release()
    vkpar.device.close_orphans()
    fresh.synchronize()
    assert held([fresh]) == before
    assert fresh.memory().used == memory
    use()


def test_a_capture_is_entered_once(device: vkpar.Device) -> None:
    capture = vkpar.capture(device)
    with capture as graph:
        pass
    with pytest.raises(InvalidUsageError, match="captured once"), capture:
        pass
    graph.launch()
    graph.close()


# ---- threads ----


def test_one_capture_at_a_time_on_a_device(device: vkpar.Device) -> None:
    a = ones(device)
    with vkpar.capture(device) as graph:

        def capture(_: int) -> None:
            with pytest.raises(InvalidUsageError, match="captured by another thread"), vkpar.capture(device):
                pass

        in_threads(capture, 1)
        vkpar.add(a, a, out=a)
    assert np.all(a.numpy() == 1)
    graph.launch()
    assert np.all(a.numpy() == 2)
    graph.close()


def test_a_capture_left_by_another_thread(device: vkpar.Device) -> None:
    a = ones(device)
    capture = vkpar.capture(device)
    graph = capture.__enter__()
    vkpar.add(a, a, out=a)

    def leave(_: int) -> None:
        with pytest.raises(InvalidUsageError, match="left by the thread that began it"):
            capture.__exit__(None, None, None)

    in_threads(leave, 1)
    assert capturing.current() is None
    with pytest.raises(InvalidUsageError):
        graph.launch()
    vkpar.add(a, a, out=a)
    assert np.all(a.numpy() == 2)


def test_threads_that_launch(device: vkpar.Device) -> None:
    """Two threads with a graph each, then both with the same one."""
    totals = [device.zeros(1, "uint32") for _ in range(3)]
    graphs = []
    for total in totals:
        with vkpar.capture(device) as graph:
            (x,) = graph.param("x")
            vkpar.add(total, x, out=total)
        graphs.append(graph)

    def work(index: int) -> None:
        for turn in range(100):
            graphs[index].launch(x=turn)
            graphs[2].launch(x=index + 1)
            if turn % 30 == 0:
                graphs[index].launch().wait(60)  # the value stays

    in_threads(work, 2)
    assert [int(total.numpy()[0]) for total in totals] == [4950 + 180] * 2 + [300]
    for graph in graphs:
        graph.close()


def test_a_close_while_threads_launch(fresh: vkpar.Device) -> None:
    a = fresh.zeros(64)
    b = ones(fresh, 64)
    with vkpar.capture(fresh) as graph:
        vkpar.add(a, b, out=a)
    started = threading.Barrier(3)

    def launch(_: int) -> None:
        graph.launch()
        started.wait(30)
        with pytest.raises(InvalidUsageError, match="closed"):
            for_ever(graph.launch)

    def for_ever(act: Callable[[], object]) -> None:
        while True:
            act()

    def close(index: int) -> None:
        if index == 0:
            started.wait(30)
            graph.close()
        else:
            launch(index)

    in_threads(close, 3)
    assert np.all(a.numpy() == graph.stats().launches)


# ---- interrupts, failures ----


def test_an_interrupt_at_every_step_of_a_capture(fresh: vkpar.Device) -> None:
    """Afterwards the thread captures nothing, eager work runs, and nothing is held that was not before."""
    a, out = ones(fresh), fresh.zeros(100)
    vkpar.add(a, a, out=out)
    fresh.array([1.0]).numpy()
    fresh.synchronize()
    before = fresh.memory().arrays
    kept: list[Any] = []

    def use() -> None:
        with vkpar.capture(fresh) as graph:
            (x,) = graph.param("x", "float32", 1)
            made = vkpar.add(a, a)
            vkpar.add(made, a, out=out)
            vkpar.add(x, x)
        kept.append(graph)
        graph.launch(x=3).wait()

    number = -1
    for number in itertools.count(0, 1 if FULL else 5):
        kept.clear()
        with Interrupt(number) as interrupt:
            use()
        assert capturing.current() is None, number
        assert not isinstance(fresh.logical.recycler, vkpar.vulkan.memory.recycle.Divided)
        vkpar.add(a, a, out=out)
        assert np.all(out.numpy() == 2), number
        if kept:
            kept[0].launch(x=4).wait()
            assert np.all(out.numpy() == 3)
        if not interrupt.fired:
            break
    assert number > 200
    kept.clear()
    vkpar.device.close_orphans()
    gc.collect()
    vkpar.device.close_orphans()
    fresh.synchronize()
    assert fresh.memory().arrays == before


def test_an_interrupted_launch_keeps_its_values(device: vkpar.Device) -> None:
    """What a launch that was interrupted did not bring to the device the next one brings."""
    out = device.zeros(1, "uint32")
    one = device.array(np.ones(1, np.uint32))
    with vkpar.capture(device) as graph:
        (x,) = graph.param("x")
        vkpar.add(x, one, out=out)
    for number in itertools.count():
        with Interrupt(number) as interrupt:
            graph.launch(x=number)
        graph.launch(x=number)
        assert out.numpy()[0] == number + 1
        graph.launch(x=number + 5)
        assert out.numpy()[0] == number + 6
        if not interrupt.fired:
            break
    assert number > 10
    graph.close()


def test_a_lost_device(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that the driver refuses raises a typed error, later ones too; the graph can be closed."""
    refuse = threading.Event()

    def functions(true: QueueHandles) -> Functions:
        def submit(handle: Any, count: int, infos: Any, fence: Any) -> int:
            return -4 if refuse.is_set() else int(true.submit(handle, count, infos, fence))

        return {"submit": submit}

    with monkeypatch.context() as patch:
        replace_functions(patch, functions)
        (lost,) = vkpar.open_devices(str(device.info.index))
    a = ones(lost)
    with vkpar.capture(lost) as graph:
        vkpar.add(a, a, out=a)
    graph.launch().wait()
    refuse.set()
    with pytest.raises(DeviceLostError):
        graph.launch()
    with pytest.raises(VulkanError):
        graph.launch()
    refuse.clear()
    graph.close()
    lost.close()


# ---- long runs ----


def test_thousands_of_launches_do_not_grow(fresh: vkpar.Device) -> None:
    total, one = fresh.zeros(64), ones(fresh, 64)
    with vkpar.capture(fresh) as graph:
        (x,) = graph.param("x")
        vkpar.add(total, one, out=total)
        vkpar.add(vkpar.add(one, one), one)
        vkpar.add(x, x)

    def launch(times: int) -> tuple[dict[str, int], int, int]:
        for turn in range(times):
            work = graph.launch(x=turn)
            if turn % 50 == 49:
                work.wait()
        del work
        gc.collect()
        fresh.synchronize()
        return held([fresh]), fresh.memory().used, len(gc.get_objects())

    handles, memory, objects = launch(200)
    times = 10_000 if FULL else 1_000
    later = launch(times)
    assert later[:2] == (handles, memory)
    assert later[2] - objects < 50
    assert np.all(total.numpy() == 200 + times)
    assert graph.stats().launches == 200 + times
    graph.close()


def test_what_people_see(device: vkpar.Device) -> None:
    a = ones(device)
    with vkpar.capture(device) as graph:
        vkpar.add(a, a, out=a)
        vkpar.add(a, a, out=a)
    assert repr(graph) == "<vkpar.Graph of 2 operations, 0 collectives: 1 stretch on 1 device>"
    assert graph.stats() == vkpar.GraphStats(2, 0, 2, 1, 0, 0, None)
    assert repr(graph.launch()) == "<vkpar.Work graph>"
    stats = graph.stats()
    assert (stats.launches, stats.host_us is not None and stats.host_us > 0) == (1, True)
    graph.close()
    assert repr(graph).endswith(": 1 stretch on 1 device, closed>")


def test_capture_takes_devices_first(device: vkpar.Device) -> None:
    for wrong in (3, device.info):
        with pytest.raises(vkpar.InvalidUsageError, match=r"capture\(devices, comm=None\) takes opened devices first"):
            vkpar.capture(wrong)  # type: ignore[arg-type]
    with vkpar.capture(each for each in [device]) as graph:  # type: ignore[arg-type]
        pass
    graph.close()
