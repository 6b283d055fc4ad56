"""Views of any strides, on every driver: what NumPy's views hold, read, written, copied and given to everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.regions import keys, shapes
from helpers.vulkan.planning import forget
from hypothesis import given
from hypothesis import strategies as st

import vkpar
from vkpar import InvalidUsageError
from vkpar.arrays import region
from vkpar.arrays.views import overlaps

pytestmark = [pytest.mark.device, pytest.mark.sampled(4)]
DTYPES = ["bool", "int8", "uint16", "float16", "bfloat16", "float32", "int64", "float64", "complex128"]
SMALL = {"max_buffer": 4096, "max_binding": 4096}


def values_of(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Return elements of any bits."""
    itemsize = vkpar.dtypes.resolve(dtype).itemsize
    raw = np.random.default_rng(seed).integers(0, 256, (*shape, itemsize), np.uint8)
    raw = raw % 2 if dtype == "bool" else raw
    return raw.view(vkpar.dtypes.resolve(dtype).numpy).reshape(shape)


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert got.tobytes() == want.tobytes()


def _step(seen: np.ndarray, kind: str) -> st.SearchStrategy[Callable[[Any], Any]]:
    if kind == "key":
        return keys(seen.shape).map(_whole).map(lambda key: lambda x: x[key])
    if kind == "transpose":
        return st.permutations(range(seen.ndim)).map(lambda axes: lambda x: x.transpose(tuple(axes)))
    if kind == "broadcast":
        wide = st.tuples(*(st.sampled_from([side, 3]) if side == 1 else st.just(side) for side in seen.shape))
        return st.tuples(st.sampled_from([(), (2,)]), wide).map(lambda parts: lambda x: broadcast(x, sum(parts, ())))
    if kind == "reshape":
        return st.permutations(seen.shape).map(lambda shape: lambda x: x.reshape(tuple(shape)))
    return st.just(lambda x: x.T)


def _whole(key: Any) -> Any:
    """Return the key with ``...`` in it, with which NumPy gives a view even where that has no axes."""
    items = key if isinstance(key, tuple) else (key,)
    return key if any(item is ... for item in items) else (*items, ...)


def broadcast(x: Any, shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(x, shape) if isinstance(x, np.ndarray) else x.broadcast_to(shape)


@st.composite
def programs(draw: st.DrawFn, *, repeats: bool = True) -> tuple[tuple[int, ...], list[Callable[[Any], Any]]]:
    shape = draw(shapes(max_dims=4))
    seen = np.zeros(shape)
    steps = []
    kinds = ["key", "key", "transpose", "T", "reshape"] + ["broadcast"] * repeats
    for _ in range(draw(st.integers(1, 4))):
        steps.append(draw(_step(seen, draw(st.sampled_from(kinds)))))
        seen = steps[-1](seen)
    return shape, steps


def follow(x: Any, steps: list[Callable[[Any], Any]]) -> Any:
    for step in steps:
        x = step(x)
    return x


@given(programs(), st.sampled_from(DTYPES), st.integers(0, 2**32 - 1))
def test_views_hold_what_those_of_numpy_hold(
    device: vkpar.Device, program: tuple[Any, Any], dtype: str, seed: int
) -> None:
    shape, steps = program
    values = values_of(shape, dtype, seed)
    view, want = follow(device.array(values, dtype), steps), follow(values, steps)
    same(view.numpy(), np.ascontiguousarray(want).reshape(want.shape))
    made = view.contiguous()
    assert made.is_contiguous
    assert (made is view) == view.is_contiguous
    same(made.numpy(), view.numpy())
    if view.size and not view.is_contiguous:
        assert tuple(stride * want.itemsize for stride in view.strides) == tuple(
            stride if count > 1 else mine * want.itemsize
            for stride, count, mine in zip(want.strides, want.shape, view.strides, strict=True)
        ) or not np.shares_memory(want, values)
    key = (..., slice(None, None, -2)) if want.ndim else ...
    same(view.read(key), np.ascontiguousarray(want[key]).reshape(want[key].shape))


@given(
    programs(repeats=False),
    st.sampled_from(DTYPES),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["write", "copy", "strided", "zero"]),
)
def test_views_are_written(device: vkpar.Device, program: tuple[Any, Any], dtype: str, seed: int, way: str) -> None:
    shape, steps = program
    values = values_of(shape, dtype, seed)
    array = device.array(values, dtype)
    view, want = follow(array, steps), follow(values, steps)
    news = values_of(want.shape, dtype, seed + 1)
    if way == "write":
        view.write(news)
    elif way == "copy":
        vkpar.copy(device.array(news, dtype), view)
    elif way == "strided":
        vkpar.copy(device.array(np.array(news.T, order="C"), dtype).T, view)
    else:
        news[...] = 0
        view.fill_zeros()
    want[...] = news
    same(view.numpy(), news)
    same(array.numpy(), values)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_views_over_several_buffers(reopen: Callable[..., vkpar.Device], dtype: str) -> None:
    device = reopen(**SMALL)
    values = values_of((90, 70), dtype, 3)
    array = device.array(values, dtype)
    for look in (lambda x: x.T, lambda x: x[::-1, ::3], lambda x: x[1:, 3:50].T, lambda x: x[:, 7]):
        view, want = look(array), look(values)
        same(view.contiguous().numpy(), np.ascontiguousarray(want))
        news = values_of(want.shape, dtype, 4)
        view.copy_from(device.array(news, dtype))
        want[...] = news
        same(array.numpy(), values)
    odd = device.array(values_of((90 * 70 + 1,), dtype, 5), dtype)
    odd[1:].copy_from(array.T)
    same(odd[1:].numpy(), values.T.ravel())
    same(odd[:1].numpy(), values_of((90 * 70 + 1,), dtype, 5)[:1])


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "int64"])
def test_invocations_carry_over_all_axes(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    a = values_of((5, 7, 6, 3, 11, 13), dtype, 3)
    keys = (..., slice(None, None, 3)), (slice(None, None, -2), slice(1, 6, 2), slice(None, None, 4), 1)
    for key, each in ((key, each) for key in keys for each in (1, 16)):
        monkeypatch.setattr(region, "_EACH", each)
        forget(device)
        x = device.array(a)
        same(x[key].T.contiguous().numpy(), a[key].T)
        same(vkpar.repeat(x[key], 3, -1).numpy(), np.repeat(a[key], 3, -1))
        b = a.copy()
        b[key] = values_of(a[key].shape, dtype, 4)
        x[key] = device.array(values_of(a[key].shape, dtype, 4))
        same(x.numpy(), b)


def test_many_axes(device: vkpar.Device) -> None:
    values = np.arange(3**8, dtype=np.int16).reshape((3,) * 8)
    for look in (lambda x: x.transpose(7, 0, 6, 1, 5, 2, 4, 3), lambda x: x[::-1, ::2, ::2, ::2, ::2, ::2, ::2, ::2]):
        same(look(device.array(values)).contiguous().numpy(), np.ascontiguousarray(look(values)))


@given(programs(), programs(), st.integers(0, 40), st.integers(0, 40))
def test_overlaps_are_exact(
    device: vkpar.Device, one: tuple[Any, Any], other: tuple[Any, Any], start: int, begin: int
) -> None:
    values = np.zeros(2000, np.int16)
    array = device.array(values)

    def look(x: Any, program: tuple[Any, Any], first: int) -> Any:
        shape, steps = program
        return follow(x[first : first + int(np.prod(shape))].reshape(shape), steps)

    a, b = look(array, one, start), look(array, other, begin)
    x, y = look(values, one, start), look(values, other, begin)
    if np.shares_memory(x, values) and np.shares_memory(y, values):  # reshape may have copied
        assert overlaps(a, b) == np.shares_memory(x, y)


def test_copies_of_overlapping_views(device: vkpar.Device) -> None:
    values = np.arange(7 * 7, dtype=np.int32).reshape(7, 7)
    array = device.array(values)
    for target, source in ((np.s_[:, ::2], np.s_[:, :4]), (np.s_[::-1], np.s_[:]), (np.s_[:, 1:], np.s_[:, :-1])):
        vkpar.copy(array[source], array[target])
        values[target] = values[source].copy()
        same(array.numpy(), values)
    vkpar.copy(array.T, array)
    same(array.numpy(), np.ascontiguousarray(values.T))


def test_what_a_view_says_of_itself(device: vkpar.Device) -> None:
    array = device.zeros((4, 6), "float16")
    assert array.strides == (6, 1)
    assert array.is_contiguous
    assert array.T.strides == (1, 6)
    assert not array.T.is_contiguous
    assert array.T.T.is_contiguous
    assert array[:, 2].strides == (6,)
    assert array[2:3, ::2][:, :1].is_contiguous
    assert array[:, None, 3].shape == (4, 1)
    assert array[:0, ::2].is_contiguous
    assert array[None].broadcast_to((5, 4, 6)).strides == (0, 6, 1)
    assert vkpar.transpose(array, (1, 0)).shape == (6, 4)
    assert array.transpose(-1, 0).shape == (6, 4)
    assert [row.shape for row in array.T] == [(4,)] * 6
    assert "[" in str(array.T)


@pytest.mark.parametrize("axes", [(0,), (0, 0), (0, 2), (0, 1, 2), (0, 1.5), "ab"])
def test_axes_that_are_refused(device: vkpar.Device, axes: Any) -> None:
    with pytest.raises(InvalidUsageError, match="each of the 2 axes once"):
        device.zeros((2, 3)).transpose(axes)


@pytest.mark.parametrize("shape", [(3,), (2, 2), (3, 2, 4), (-1, 3)])
def test_shapes_that_nothing_is_broadcast_to(device: vkpar.Device, shape: Any) -> None:
    with pytest.raises(InvalidUsageError):
        device.zeros((2, 3)).broadcast_to(shape)


def test_views_by_broadcasting_are_not_written(device: vkpar.Device) -> None:
    view = device.zeros((1, 3)).broadcast_to((4, 3))
    for call in (
        lambda: view.write(np.zeros((4, 3), np.float32)),
        lambda: view.copy_from(device.zeros((4, 3))),
        view.fill_zeros,
        lambda: vkpar.add(view, view, out=view),
    ):
        with pytest.raises(InvalidUsageError, match="broadcasting"):
            call()
    same(view.numpy(), np.zeros((4, 3), np.float32))


def test_operations_take_views(device: vkpar.Device, rng: np.random.Generator) -> None:
    values = rng.standard_normal((40, 30)).astype(np.float32)
    array = device.array(values)
    same(vkpar.add(array.T, array.T).numpy(), values.T + values.T)
    same(vkpar.add(array[::-1], array[0]).numpy(), values[::-1] + values[0])
    out = device.zeros((30, 40, 2))
    vkpar.add(array.T, array.T, out=out[..., 1])
    same(out[..., 1].numpy(), values.T + values.T)
    assert not out[..., 0].numpy().any()
    same(vkpar.cast(array[:, ::2], "float16").numpy(), values[:, ::2].astype(np.float16))
    halves = device.zeros((30, 41), "float16")
    vkpar.cast(array.T, "float16", out=halves[:, 1:])
    same(halves[:, 1:].numpy(), values.T.astype(np.float16))
    same(vkpar.cast(array.T, "float32").numpy(), np.ascontiguousarray(values.T))
    wide = vkpar.matmul(array.T, array)
    same(wide.numpy(), vkpar.matmul(array.T.contiguous(), array).numpy())
    square = device.zeros((30, 60))
    vkpar.matmul(array.T, array, out=square[:, ::2])
    same(square[:, ::2].numpy(), wide.numpy())
    with pytest.raises(InvalidUsageError, match="share memory"):
        vkpar.add(array[:30, :30].T, array[:30, :30], out=array[:30, :30])
    vkpar.add(array[:, 0], array[:, 1], out=array[:, 0])
    same(array[:, 0].numpy(), values[:, 0] + values[:, 1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "key",
    [
        np.s_[:, :, 3:4],
        np.s_[:, 2:3, ::9],
        np.s_[:, ::2, 1:2],
        np.s_[1:2, ::-1, 2:3],
        np.s_[:, 3],
        np.s_[::2, 1:4, 1:4],
        np.s_[1:2, 2:3, 3:4],
    ],
    ids=str,
)
def test_halves_are_computed_into_any_view(device: vkpar.Device, key: Any, dtype: str) -> None:
    """Kernels write them in pairs, which single columns and odd rows are not."""
    array, want = device.zeros((5, 7, 9), dtype), np.zeros((5, 7, 9), np.float32)
    view, part = array[key], want[key]
    for number in (1, 2):  # the second call goes by what the first one kept
        view += number
        part += number
        same(array.astype("float32").numpy(), want)


@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("halves", [(0, 1), (1, 0), (1, 1)])
def test_results_of_two_types_in_two_orders(
    device: vkpar.Device, turned: tuple[int, int], halves: tuple[int, int]
) -> None:
    values = np.arange(35, dtype=np.float32).reshape(5, 7)
    names = ["float16" if half else "float32" for half in halves]
    outs = []
    for turn, name in zip(turned, names, strict=True):
        outs.append(device.zeros((7, 5), name).T if turn else device.zeros((5, 7), name))
    both = vkpar.elementwise("y = a + 1; z = b + 2")
    for _ in range(2):
        both(*(device.array(values, name) for name in names), out=tuple(outs))
        same(outs[0].numpy(), (values + 1).astype(names[0]))
        same(outs[1].numpy(), (values + 2).astype(names[1]))


def test_plans_tell_views_apart(device: vkpar.Device) -> None:
    """Arrays of one shape, of which some are views: each call gives its own result, again and again."""
    values = np.arange(36, dtype=np.float32).reshape(6, 6)
    array = device.array(values)
    for _ in range(3):
        same(vkpar.add(array, array).numpy(), values + values)
        same(vkpar.add(array.T, array).numpy(), values.T + values)
        same(vkpar.add(array, array.T).numpy(), values + values.T)
        out = device.zeros((6, 6))
        vkpar.add(array, array, out=out.T)
        same(out.numpy(), (values + values).T.copy())


def test_transposes_and_packed_copies_by_plan(device: vkpar.Device) -> None:
    """The second ones are made of what is known of the first: of arrays of one form, but not of others."""
    values = np.arange(48, dtype=np.float32).reshape(6, 8)
    for host in (values, values + 1, values[:4].copy(), values.reshape(8, 6), values.reshape(2, 3, 8)):
        for dtype in ("float32", "float16", "int8"):
            array = device.array(host, dtype)
            for view, shown in (
                (array.T, host.T),
                (array[1:].T, host[1:].T),
                (array.T.T, host),
                (array[0].T, host[0].T),
            ):
                assert (view.shape, view.strides, view.dtype) == (shown.shape, array_strides(shown), dtype)
                same(view.contiguous().numpy(), shown.astype(dtype))
                same(view.contiguous().numpy(), shown.astype(dtype))
    view = array.T
    array.close()
    with pytest.raises(vkpar.InvalidUsageError, match="given back"):
        view.contiguous()


def array_strides(values: Any) -> tuple[int, ...]:
    return tuple(step // values.itemsize for step in values.strides)


def test_kernels_say_what_to_do(device: vkpar.Device, compiler: None) -> None:
    source = "#version 450\nlayout(binding = 0) buffer A { float a[]; };\nvoid main() { a[0] = 1.0; }"
    kernel = vkpar.Kernel(device, source)
    with pytest.raises(InvalidUsageError, match=r"binding 0.*\.contiguous\(\)"):
        kernel(1, device.zeros((3, 4)).T)
    with pytest.raises(InvalidUsageError, match=r"\.contiguous\(\)"):
        vkpar.pieces(device.zeros((3, 4)).T)


def test_copies_to_another_device(device: vkpar.Device, reopen: Callable[..., vkpar.Device]) -> None:
    other = reopen()
    values = np.arange(60, dtype=np.float32).reshape(4, 15)
    array = device.array(values)
    same(array.T.to(other).numpy(), np.ascontiguousarray(values.T))
    landing = other.zeros((15, 8))
    vkpar.copy(array.T, landing[:, ::2])
    same(landing[:, ::2].numpy(), np.ascontiguousarray(values.T))
    assert not landing[:, 1::2].numpy().any()


def test_collectives_take_views(device: vkpar.Device) -> None:
    values = np.arange(16, dtype=np.float32).reshape(4, 4)
    with vkpar.Communicator([device]) as comm:
        for _ in range(2):
            array, landing = device.array(values), device.zeros((4, 8))
            comm.all_reduce([array.T])
            comm.all_reduce([array.T], out=[landing[:, ::2]]).wait()
            same(array.numpy(), values)
            same(landing[:, ::2].numpy(), values.T)
            assert not landing[:, 1::2].numpy().any()


def test_host_memory_and_views(device: vkpar.Device) -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = device.array(values)
    with vkpar.host_array((6, 4), "float32", [device]) as host:
        array.T.read(out=host)
        same(host.numpy().copy(), np.ascontiguousarray(values.T))
        array.T.write(host)
        same(array.numpy(), values)


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 3), [3]])
def test_squeeze_and_ravel(device: vkpar.Device, axis: Any) -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3, 1)
    a = device.array(x)
    named = tuple(axis) if isinstance(axis, list) else axis
    assert a.squeeze(axis).numpy().tolist() == x.squeeze(named).tolist()
    assert a.transpose(0, 2, 1, 3).squeeze(axis).numpy().tolist() == x.transpose(0, 2, 1, 3).squeeze(named).tolist()
    assert a.transpose(0, 2, 1, 3).ravel().numpy().tolist() == x.transpose(0, 2, 1, 3).ravel().tolist()
    assert a.ravel().storage is a.squeeze(axis).storage is a.storage
    assert device.ones((1, 1)).squeeze().shape == ()


@pytest.mark.parametrize("axis", [1, 4, -5, (0, 0), (0, -4), 1.5, "0", [0.0]])
def test_axes_that_squeeze_refuses(device: vkpar.Device, axis: Any) -> None:
    with pytest.raises(vkpar.InvalidUsageError, match="squeeze drops axes of length 1"):
        device.zeros((1, 2, 3, 1)).squeeze(axis)
