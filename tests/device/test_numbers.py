"""Arrays as Python and NumPy meet them: one element as a number, comparisons, NumPy's functions, dtypes, printing."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import vkpar
from vkpar import InvalidUsageError, OperandError, dtypes
from vkpar.arrays import interop

pytestmark = pytest.mark.device


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "int64", "uint32", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_is_a_number(device: vkpar.Device, dtype: str, shape: tuple[int, ...]) -> None:
    for value in (0, 1):
        host = np.full(shape, value, dtype)
        array = device.array(host)
        assert bool(array) is bool(value)
        assert array.item() == host.item()
        assert type(array.item()) is type(host.item())
        assert complex(array) == value
        if dtype != "complex64":
            assert (float(array), int(array)) == (value, value)


def test_one_bfloat16_is_its_value(device: vkpar.Device) -> None:
    array = device.array(-1.5, "bfloat16")
    assert (array.item(), float(array), int(array), bool(array)) == (-1.5, -1.5, -1, True)


@pytest.mark.parametrize("shape", [(2,), (0,), (1, 3)])
@pytest.mark.parametrize("convert", [bool, float, int, complex, operator.not_, vkpar.Array.item])
def test_several_elements_are_none(device: vkpar.Device, shape: tuple[int, ...], convert: Callable[..., Any]) -> None:
    with pytest.raises(InvalidUsageError, match=r"numpy\(\)"):
        convert(device.zeros(shape))


def test_comparisons_never_tell_whether_names_are_one_array(device: vkpar.Device) -> None:
    a, b = device.zeros(3), device.zeros(3)
    for compare in (operator.eq, operator.ne):
        for other in (a, b, 0):
            assert compare(a, other).numpy().tolist() == [compare is operator.eq] * 3
        for other in (None, np.zeros(3)):
            for pair in ((a, other), (other, a)):
                with pytest.raises(OperandError, match=r"device\.array\(x\)|array\.numpy\(\)|not NoneType"):
                    compare(*pair)
    with pytest.raises(InvalidUsageError, match="ambiguous"):
        a in [b]  # noqa: B015
    assert a in [b, a][1:]  # Python asks for identity first
    assert len({a, b, a}) == 2


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("exp", np.exp),
        ("add", lambda a: np.add(a, a)),
        ("add", lambda a: np.ones(3) + a),
        ("multiply", lambda a: np.ones(3, np.float32) * a),
        ("add.reduce", np.add.reduce),
        ("matmul", lambda a: np.ones((3, 3)) @ a),
        ("concatenate", lambda a: np.concatenate([a, a])),
        ("sum", np.sum),
        ("zeros_like", np.zeros_like),
        ("linalg.norm", np.linalg.norm),
        ("array_equal", lambda a: np.array_equal(a, np.ones(3))),
    ],
)
def test_functions_of_numpy_do_not_download(device: vkpar.Device, name: str, call: Callable[..., Any]) -> None:
    array = device.array(np.ones(3, np.float32))
    submitted = device.logical.transfer.last, device.logical.compute.last
    with pytest.raises(TypeError, match=rf"NumPy's {name} .* np\.{name} of array\.numpy\(\)") as caught:
        call(array)
    assert isinstance(caught.value, OperandError)
    assert (device.logical.transfer.last, device.logical.compute.last) == submitted


def test_what_numpy_reads_and_what_it_need_not_read(device: vkpar.Device) -> None:
    host = np.arange(6, dtype=np.float32).reshape(2, 3)
    array = device.array(host)
    assert np.array_equal(np.asarray(array), host)
    assert np.array_equal(np.array(array, dtype=np.float64), host)
    assert (np.shape(array), np.ndim(array), np.size(array)) == ((2, 3), 2, 6)
    np.testing.assert_array_equal(np.zeros(array.shape, array.dtype), np.zeros((2, 3), np.float32))
    assert np.empty(3, array.dtype).dtype == np.float32
    assert np.zeros(3, device.zeros(3, "bfloat16").dtype).dtype == ml_dtypes.bfloat16


def test_bfloat16_of_ml_dtypes(device: vkpar.Device) -> None:
    kind = ml_dtypes.bfloat16
    host = np.array([[1.5, -2.0, np.inf], [3.0e38, 1e-30, 0.0]], np.float32).astype(kind)
    bits = host.view(np.uint16)
    for source in (host, host[:, ::-1][:, ::-1], host.tolist()):
        array = device.array(source, kind)
        assert array.dtype == dtypes.bfloat16
        assert np.array_equal(array.numpy(), host)
    array = device.array(host)
    assert array.numpy().dtype == array.read((0, slice(None))).dtype == kind
    assert array.dtype == "bfloat16"
    assert array.dtype == kind
    back = np.asarray(array, kind)
    assert back.dtype == kind
    assert np.array_equal(back.view(np.uint16), bits)
    assert np.array_equal(np.asarray(device.array(host, "float32")), host.astype(np.float32))
    for made in (device.zeros((2, 3), kind), device.empty((2, 3), np.dtype(kind))):
        assert made.dtype == dtypes.bfloat16
        made.write(host)
        made.write(host[:, 1], np.s_[:, 1])
        out = np.zeros((2, 3), kind)
        assert made.read(out=out) is out
        assert np.array_equal(out.view(np.uint16), bits)
        assert np.array_equal(made.read(np.s_[:, ::2], out=out[:, :2].copy()).view(np.uint16), bits[:, ::2])
    assert np.array_equal(vkpar.cast(device.array(host.astype(np.float32)), kind).numpy(), host)
    assert np.array_equal(np.asarray(device.array(host.astype(np.float32)), kind).view(np.uint16), bits)
    assert device.array(host[0, 0]).item() == 1.5
    with pytest.raises(InvalidUsageError, match="float8"):
        device.array(host.astype(ml_dtypes.float8_e4m3fn))


def test_host_memory_of_ml_dtypes(device: vkpar.Device) -> None:
    if not device.info.features.host_import:
        pytest.skip("no import of host memory")
    with (
        vkpar.host_array(4096, ml_dtypes.bfloat16, device) as made,
        vkpar.register_host(made.numpy(), device) as registered,
    ):
        assert made.dtype == registered.dtype == dtypes.bfloat16
        registered.numpy()[:] = 1
        assert float(device.array(registered)[4095:]) == 1.0


# --- printing ---


@pytest.mark.parametrize(
    "host",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3) / 4,
        np.array([1e-20, np.nan, -np.inf], np.float32),
        np.array(7, np.int32),
        np.array([True, False]),
        np.arange(5000, dtype=np.float32) - 2500,
        np.arange(40 * 50 * 3, dtype=np.int16).reshape(40, 50, 3),
        np.arange(2.0**11).reshape((2,) * 11),
    ],
    ids=lambda host: f"{host.shape}-{host.dtype}",
)
def test_printing_shows_what_numpy_shows(device: vkpar.Device, host: np.ndarray[Any, Any]) -> None:
    shown = np.array2string(host, separator=", ", prefix="vkpar.Array(")
    assert (
        str(device.array(host))
        == f"vkpar.Array({shown}, shape={host.shape}, dtype={host.dtype}, device={str(device)!r})"
    )


def test_printing_follows_numpys_options_and_reads_no_more_than_it_shows(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = device.array(np.arange(200 * 300, dtype=np.float32).reshape(200, 300))
    read, fetched = vkpar.Array.fetch, []

    def counting(self: vkpar.Array, *given: Any) -> Any:
        fetched.append(found := read(self, *given))
        return found

    monkeypatch.setattr(vkpar.Array, "fetch", counting)
    with np.printoptions(threshold=10, edgeitems=2):
        text = str(array)
    assert sum(values.size for values in fetched) == 16
    assert text.count("...") == 5
    assert "5.9999e+04" in text


def test_printing_bfloat16_and_nothing(device: vkpar.Device) -> None:
    assert "[ 1.5, -2. ]" in str(device.array([1.5, -2.0], "bfloat16"))
    assert "dtype=bfloat16" in str(device.zeros(2, "bfloat16"))
    assert str(device.zeros((0, 3))).startswith("vkpar.Array([], shape=(0, 3), dtype=float32")


def test_printing_what_cannot_be_read_says_why(device: vkpar.Device) -> None:
    other = vkpar.open_devices(str(device.info.index))[0]
    closed, lost = other.zeros(3), other.zeros(3)
    closed.close()
    assert "given back by close()" in str(closed)
    with vkpar.Communicator([other]) as comm, comm.group():
        comm.all_reduce([lost], out=[pending := other.zeros(3)])
        before = other.logical.compute.last
        for text in (str(pending), repr(pending), f"{pending}"):
            assert "(3,) float32" in text
        assert "pending in a group" in str(pending)
        assert other.logical.compute.last == before
    other.synchronize()
    other.close()
    assert "(3,) float32" in repr(lost)
    assert "closed" in str(lost)


def test_printing_after_the_device_was_lost(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    array = device.zeros(3)

    def gone(*given: Any) -> None:
        raise vkpar.DeviceLostError("VK_ERROR_DEVICE_LOST", "vkWaitSemaphores")

    monkeypatch.setattr(device.logical.host, "download", gone)
    assert "VK_ERROR_DEVICE_LOST" in str(array)
    assert "VK_ERROR" not in repr(array)


def test_devices_of_one_name_are_told_apart(device: vkpar.Device) -> None:
    with vkpar.open_devices(str(device.info.index))[0] as other:
        assert repr(device.zeros(3)) != repr(other.zeros(3))
        with pytest.raises(InvalidUsageError, match=r"different devices: .* with Array\.to\(device\)") as caught:
            vkpar.add(device.zeros(3), other.zeros(3))
        named = str(caught.value).partition("different devices:")[2].partition(";")[0]
        first, second = named.split(" and ")
        assert first.strip() != second.strip()


def test_copies_are_aligned_and_apart(device: vkpar.Device) -> None:
    array = device.array(np.arange(10, dtype=np.float32))
    made = array[3:7].copy()
    array.fill_zeros()
    assert np.array_equal(made.numpy(), np.arange(3, 7, dtype=np.float32))
    assert made.byte_offset % 256 == 0
    array.close()
    with pytest.raises(InvalidUsageError, match="given back"):
        array.copy()


def test_a_dtype_in_place_of_a_dimension(device: vkpar.Device) -> None:
    for make in (device.zeros, device.empty):
        with pytest.raises(InvalidUsageError, match=r"not a dtype: 4; .*tuple.*\(3, 4\)"):
            make(3, 4)


def test_whole_numbers_as_bfloat16(device: vkpar.Device) -> None:
    a = device.array([-1, 2], "bfloat16")
    assert a.tolist() == [-1, 2]
    a[:] = [-3, 65536]
    assert a.tolist() == [-3, 65536]


def test_numbers_of_numpy_wrap_where_they_are_assigned(device: vkpar.Device) -> None:
    a = device.zeros(3, "uint8")
    a[:] = np.array([300, -1, 7])
    assert a.tolist() == [44, 255, 7]


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ([1e300], "float64"),
        ([math.inf, math.nan], "float32"),
        ([1 << 40], "int64"),
        ([1, 2.5], "float32"),
        ([], "float32"),
    ],
)
def test_python_numbers_take_32_bits_where_they_fit(device: vkpar.Device, numbers: list[float], dtype: str) -> None:
    made = device.array(numbers)
    assert made.dtype.name == dtype
    np.testing.assert_array_equal(made.numpy(), np.array(numbers, dtype))


@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        ([1.0, 2.5], "float32"),
        ([[1, 2], [3.5, 4]], "float32"),
        ([], "float32"),
        (1.5, "float32"),
        ((1, -2), "int32"),
        ([[2**31 - 1], [-(2**31)]], "int32"),
        (range(4), "int32"),
        (7, "int32"),
        ([2**31], "int64"),
        ([True, False], "bool"),
        (np.array([1.0]), "float64"),
        (np.array([1]), "int64"),
        (np.float64(1.5), "float64"),
        ([np.ones(2), np.zeros(2)], "float64"),
        (np.float32(1.5), "float32"),
        ([1j], "complex128"),
    ],
    ids=str,
)
def test_what_has_no_type_gets_one_that_devices_compute(device: vkpar.Device, source: Any, dtype: str) -> None:
    made = device.array(source)
    assert made.dtype == dtype
    np.testing.assert_array_equal(made.numpy(), np.asarray(source).astype(dtype))
    assert device.array(source, "complex64").dtype == "complex64"


@pytest.mark.parametrize(
    ("call", "ours"),
    [
        (np.exp, "vkpar.exp(a)"), (np.abs, "vkpar.abs(a)"), (np.sin, "vkpar.sin(a)"),
        (lambda a: np.add(a, a), "vkpar.add(a, b)"), (lambda a: np.mod(a, a), "vkpar.mod(a, b)"),
        (lambda a: np.clip(a, 0, 1), "vkpar.clip(a, low, high)"), (np.ravel, "a.ravel()"),
        (lambda a: np.where(a, a, a), "vkpar.where(c, a, b)"), (np.square, "vkpar.square(a)"), (np.amin, "a.min()"),
        (np.linalg.norm, None), (np.median, None),
    ],
)  # fmt: skip
def test_numpy_names_the_function_of_vkpar(device: vkpar.Device, call: Callable[..., Any], ours: str | None) -> None:
    with pytest.raises(OperandError) as caught:
        call(device.ones(3))
    assert (f"write {ours}, with" in str(caught.value)) == (ours is not None)
    assert "array.numpy() to compute on the host" in str(caught.value)


@pytest.mark.parametrize(("name", "ours"), [each for each in interop._OURS.items() if each[1].startswith("vkpar.")])
def test_what_is_named_in_place_of_numpy_exists(name: str, ours: str) -> None:
    written = ours.format(name)
    for function in re.findall(r"vkpar\.(\w+)\(", written):
        assert callable(getattr(vkpar, function))
    for expression in re.findall(r'"(.*)"', written):
        vkpar.elementwise(expression)


def test_types_that_are_not_computed_are_converted_where_they_lie(device: vkpar.Device) -> None:
    """What messages say, for types that devices convert; of others the host does."""
    whole, other, wide = (
        device.ones((2, 2), "int32"),
        device.ones((2, 2), "uint32"),
        device.array(np.ones((2, 2), np.complex64)),
    )
    for call in (lambda a: a @ a, vkpar.softmax, vkpar.rms_norm):
        with pytest.raises(vkpar.UnsupportedError, match=re.escape('on the device: a.astype("float32")')):
            call(whole)
        with pytest.raises(vkpar.UnsupportedError, match="on the host"):
            call(wide)
        call(whole.astype("float32"))
    long = device.array([[1, 2]], "int64")
    for mixed in (lambda: other.astype("uint64") + long, lambda: long * other.astype("uint64")):
        with pytest.raises(vkpar.UnsupportedError, match="cast one"):
            mixed()


def test_operators_of_whole_numbers(device: vkpar.Device) -> None:
    a, b = device.array([1, 0, 5]), device.array([1, 1, 3])
    for sign, compute in (("&", operator.and_), ("|", operator.or_), ("^", operator.xor), ("%", operator.mod),
                          ("//", operator.floordiv), ("<<", operator.lshift), (">>", operator.rshift)):  # fmt: skip
        expression = vkpar.elementwise(f"y = a {sign} b")
        for pair in ((a, b), (a, 2), (2, b)):
            one, other = (np.asarray(each) for each in pair)
            np.testing.assert_array_equal(compute(*pair).numpy(), compute(one, other))
            np.testing.assert_array_equal(expression(*pair).numpy(), compute(one, other))
    assert (~a).tolist() == [-2, -1, -6]
    masks = [a > 0, b > 1]
    x, y = (mask.numpy() for mask in masks)
    assert x.dtype == bool
    assert ((~masks[0] | masks[1]).numpy() == (~x | y)).all()
    assert ((masks[0] * masks[1]).numpy() == (x & y)).all()
    assert (vkpar.maximum(*masks).numpy() == (x | y)).all()
    assert ((masks[0] != masks[1]).numpy() == (x ^ y)).all()


def test_format(device: vkpar.Device) -> None:
    loss = device.array([0.123456]).sum()
    assert f"{loss:.3f} {device.array(7):04d}" == "0.123 0007"
    assert f"{device.ones((1, 1), 'bfloat16'):.1f} {loss}" == f"1.0 {loss!s}"
    with pytest.raises(InvalidUsageError, match=r"an array \(3,\) is no single number"):
        f"{device.ones(3):.3f}"


def test_copies_by_the_copy_module(device: vkpar.Device) -> None:
    a = device.array([1.0, 2.0, 3.0])
    shallow, deep = copy.copy(a[1:]), copy.deepcopy({"a": a[1:]})["a"]
    assert shallow.storage is a.storage
    assert deep.storage is not a.storage
    shallow.fill(9)
    assert (a.tolist(), deep.tolist()) == ([1, 9, 9], [2, 3])


def test_what_lives_in_this_process_is_not_pickled(device: vkpar.Device) -> None:
    source = "#version 450\nlayout(local_size_x = 1) in;\nvoid main() {}\n"
    cache = vkpar.KVCache(device, 8, 2, 16)
    weights = vkpar.quantized(device, np.zeros((1, 34), np.uint8), (1, 32), "q8_0")
    with vkpar.Kernel(device, source) as kernel, vkpar.capture(device) as graph:
        for thing in (device, kernel, graph, cache, weights):
            for refuse in (pickle.dumps, copy.deepcopy):
                with pytest.raises(OperandError, match=f"a {type(thing).__name__} lives in this process alone"):
                    refuse(thing)
    graph.close()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_says_what_can_be(device: vkpar.Device, protocol: int) -> None:
    with pytest.raises(OperandError, match=r"cannot be pickled: pickle array\.numpy\(\)"):
        pickle.dumps(device.ones(3), protocol)


# --- beyond float32 ---

BEYOND = [2.0**128 - 2.0**103, 1e39, 10**39, 10**400, 10**5000]


@pytest.mark.parametrize("number", BEYOND, ids=["2^128-2^103", "1e39", "10**39", "10**400", "10**5000"])
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_beyond_float32(device: vkpar.Device, number: float, sign: int) -> None:
    number, infinity = sign * number, sign * np.inf
    a, rows, q = device.array([1.0, -2.0]), device.ones((1, 2)), device.ones((1, 4, 2))
    positions = device.zeros(4, "int32")
    assert (a * number).tolist() == [infinity, -infinity]
    assert (a < number).tolist() == [sign > 0] * 2
    assert vkpar.elementwise("y = x * s")(a, s=number).tolist() == [infinity, -infinity]
    for dtype in ("float32", "float16", "bfloat16"):
        assert vkpar.full(device, 2, number, dtype).tolist() == [infinity] * 2
    a[0] = number
    assert a.tolist() == [infinity, -2]
    refused: list[Callable[[], object]] = [
        lambda: vkpar.rms_norm(rows, None, number),
        lambda: vkpar.layer_norm(rows, None, None, number),
        lambda: vkpar.rope(q, positions, theta=number),
        lambda: vkpar.attention(q, q, q, scale=number),
        lambda: vkpar.arange(device, number, None, 1e38),
        lambda: vkpar.random.uniform(device, 1, 0.0, number, seed=1),
        lambda: vkpar.random.uniform(device, 1, -3e38, 3e38, seed=1),
        lambda: vkpar.random.normal(device, 1, number, 1.0, seed=1),
        lambda: vkpar.random.normal(device, 1, 0.0, number, seed=1),
        lambda: vkpar.full(device, 1, number, "int32"),
    ]
    if isinstance(number, int):
        refused.append(lambda: device.array([1, 2]) * number)
    for use in refused:
        with pytest.raises((InvalidUsageError, vkpar.UnsupportedError)):
            use()


def test_the_largest_numbers_of_float32_are_finite(device: vkpar.Device) -> None:
    largest = float(np.finfo(np.float32).max)
    for number in (largest, np.nextafter(2.0**128 - 2.0**103, 0), int(largest)):
        assert vkpar.full(device, 1, number).tolist() == [largest]
        assert (device.ones(1) * number).tolist() == [largest]
    assert vkpar.random.uniform(device, 1, 0.0, largest, seed=1).item() < np.inf


def test_numbers_beyond_float64(device: vkpar.Device) -> None:
    for dtype in ("float64", "complex128"):
        with pytest.raises(InvalidUsageError, match="fill"):
            vkpar.full(device, 1, 10**400, dtype)
