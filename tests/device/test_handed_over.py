"""What goes in and out as it is: bfloat16 of ml_dtypes, DLPack's producers, views of bytes, attributes, keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import vkpar
from vkpar import DLPackError, IndexingError, InvalidUsageError, OperandError, OutOfMemoryError, ReadOnlyError
from vkpar.parallel import open_weights

pytestmark = pytest.mark.device

BF16 = np.dtype(ml_dtypes.bfloat16)


class Producer:
    """An array of another library, which NumPy sees by DLPack alone."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **how: Any) -> Any:
        how.pop("copy", None)
        return self._held.__dlpack__(**how)


class Tensor(Producer):
    """The same, which says so as torch's tensors of bfloat16 do."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError("Got unsupported ScalarType BFloat16")


@pytest.mark.parametrize("kind", [Producer, Tensor])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8", "uint16", "float16"])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0, 2)])
def test_producers_go_in(device: vkpar.Device, kind: type[Producer], dtype: str, shape: tuple[int, ...]) -> None:
    with vkpar.host_array(shape, dtype, device) as held:
        want = held.numpy()
        want[...] = np.arange(want.size).reshape(shape)
        for made in (device.array(kind(held)), vkpar.from_dlpack(kind(held), device)):
            assert made.dtype == dtype
            assert made.numpy().dtype == want.dtype
            assert np.array_equal(made.numpy(), want)
        converted = device.array(kind(held), "float32")
        assert np.array_equal(converted.numpy(), want.astype(np.float32))
        target = device.zeros(shape, dtype)
        target.write(kind(held))
        assert np.array_equal(target.numpy(), want)


def test_a_producer_that_fails(device: vkpar.Device) -> None:
    class Elsewhere(Tensor):
        def __dlpack_device__(self) -> Any:
            return (2, 0)

    class Lying(Tensor):
        def __dlpack_device__(self) -> Any:
            return "cpu"

    with vkpar.host_array(4, "bfloat16", device) as held:
        with pytest.raises(DLPackError, match="type 2"):
            device.array(Elsewhere(held))
        with pytest.raises(InvalidUsageError, match="names no device"):
            device.array(Lying(held))


def test_bfloat16_arrays_of_numpy_by_dlpack(device: vkpar.Device) -> None:
    host = np.array([[1, 2, 3], [4, 5, 6]], BF16)
    for view in (host, host.T, host[:, ::2]):
        made = vkpar.from_dlpack(view, device)
        assert made.dtype == vkpar.bfloat16
        assert np.array_equal(made.numpy(), view)


def test_bfloat16_of_safetensors(device: vkpar.Device, rng: np.random.Generator, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    host = rng.standard_normal((5, 7)).astype(BF16)
    array = device.array(host)
    file = tmp_path / "w.safetensors"
    safetensors.save_file({"w": array.numpy(), "one": array.read((1, 2)).reshape(1)}, str(file))
    loaded = safetensors.load_file(str(file))
    assert loaded["w"].dtype == BF16
    assert np.array_equal(loaded["w"], host)
    with open_weights(file) as weights:
        for region in (..., slice(1, 3), (slice(None), slice(None, None, 2)), (2, 3)):
            assert weights["w"].read(region).dtype == BF16
            assert np.array_equal(weights["w"].read(region), host[region])
        assert np.array_equal(device.array(weights["w"].read()).numpy(), host)


def test_bfloat16_of_gguf(device: vkpar.Device, rng: np.random.Generator, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    host = rng.standard_normal((4, 8)).astype(BF16)
    writer = gguf.GGUFWriter(tmp_path / "w.gguf", "llama")
    writer.add_tensor("w", device.array(host).numpy().view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_weights(tmp_path / "w.gguf") as weights:
        assert weights["w"].read().dtype == BF16
        assert np.array_equal(device.array(weights["w"].read()).numpy(), host)


def test_numbers_of_bfloat16(device: vkpar.Device) -> None:
    two, a = ml_dtypes.bfloat16(2), device.array([1.0, -3.0])
    for made, want in ((a * two, [2, -6]), (a < two, [1, 1]), (vkpar.where(a > 0, a, two), [1, 2])):
        assert made.tolist() == want
    assert (two - a).tolist() == [1, 5]
    assert vkpar.full(device, 2, two).tolist() == [2, 2]
    a[0] = two
    assert a.tolist() == [2, -3]
    half = device.array([1, 2], "bfloat16")
    assert ((half * two).dtype, (half * two).tolist()) == (vkpar.bfloat16, [2, 4])
    assert isinstance(half[0].item(), float)


# --- views of bytes ---


@pytest.mark.parametrize("given", ["float32", "bfloat16", "uint8", "int64"])
@pytest.mark.parametrize("wanted", ["uint32", "uint16", "float16", "int8", "float64", "bfloat16", np.uint32])
def test_views_of_the_same_bytes(device: vkpar.Device, given: str, wanted: Any) -> None:
    dtype, target = vkpar.dtypes.resolve(given).numpy, vkpar.dtypes.resolve(wanted).numpy
    host = np.arange(128, dtype=np.uint8).view(dtype).reshape(2, -1)
    array = device.array(host)
    seen = array.view(wanted)
    want = host.view(target)
    assert (seen.dtype, seen.shape) == (target, want.shape)
    assert seen.numpy().tobytes() == want.tobytes()
    if dtype.itemsize == target.itemsize:
        assert array[:, ::2].view(wanted).numpy().tobytes() == host[:, ::2].view(target).tobytes()
    seen[0] = seen[1]
    host[0] = host[1]
    assert array.numpy().tobytes() == host.tobytes()


def test_views_that_are_none(device: vkpar.Device) -> None:
    array = device.array(np.arange(12).reshape(3, 4), "float32")
    for given in ((), (3, 4), ((12,),), ([12],), (12,), (-1,)):
        with pytest.raises(InvalidUsageError, match="reshape"):
            array.view(*given)
    with pytest.raises(InvalidUsageError, match="not a dtype"):
        array.view("nonsense")
    with pytest.raises(InvalidUsageError, match="contiguous"):
        array.T.view("uint16")
    for odd in (
        device.zeros((2, 3), "uint8").view,
        device.zeros((), "float32").view,
        device.zeros(9, "uint8")[1:].view,
    ):
        with pytest.raises(InvalidUsageError, match="is no array of"):
            odd("uint16")


# --- keys ---


@pytest.mark.parametrize("key", [5, -4, (0, 4), (0, 0, 0), "x", 1.5, [0, 1], True, (..., ...), 2**70, (0, -5)])
def test_bad_keys_are_index_errors(device: vkpar.Device, key: Any) -> None:
    array = device.zeros((3, 4))
    for use in (lambda: array[key], lambda: array.read(key), lambda: array.__setitem__(key, 1)):
        with pytest.raises(IndexError) as caught:
            use()
        assert isinstance(caught.value, IndexingError | InvalidUsageError)


def test_more_dimensions_than_numpy_has(device: vkpar.Device) -> None:
    most = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
    array = device.array([[1.0, 2.0]])
    assert array[(None,) * (most - 2)].numpy().shape == (*(1,) * (most - 1), 2)
    uses = (
        lambda: array[(None,) * (most - 1)],
        lambda: array.reshape((1,) * most + (2,)),
        lambda: array.broadcast_to((1,) * most + (2,)),
        lambda: device.zeros((1,) * (most + 1)),
        lambda: device.empty([1] * (most + 1)),
        lambda: vkpar.stack([array[(None,) * (most - 2)]]),
        lambda: vkpar.host_array((1,) * (most + 1), "int8", device),
    )
    for use in uses:
        with pytest.raises(InvalidUsageError, match=r"dimensions|reshape"):
            use()


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 40), (1 << 62,), 1 << 70])
def test_what_no_host_holds(device: vkpar.Device, shape: Any) -> None:
    view = device.array([1.0]).broadcast_to(shape)
    for use in (view.numpy, view.read, view.tolist, lambda: np.asarray(view), view.contiguous):
        with pytest.raises(OutOfMemoryError, match="does not fit"):
            use()


# --- attributes, truth ---


def test_attributes_are_not_set(device: vkpar.Device) -> None:
    array, q = device.zeros((2, 3)), vkpar.quantized(device, np.zeros((1, 34), np.uint8), (1, 32), "q8_0")
    cache, host = vkpar.KVCache(device, 1, 4, 8), vkpar.host_array(3, "float32", device)
    double = vkpar.elementwise("y = x + x")
    objects: list[tuple[Any, str]] = [
        *((array, name) for name in ("shape", "dtype", "device", "size", "ndim", "strides", "nbytes", "T")),
        *((host, name) for name in ("shape", "dtype", "devices")),
        *((q, name) for name in ("shape", "kind", "device", "pieces")),
        *((cache, name) for name in ("tokens", "k", "length")),
        *((device, name) for name in ("info", "name", "plans", "closed")),
        (double, "text"),
    ]
    for owner, name in objects:
        with pytest.raises(AttributeError):
            setattr(owner, name, getattr(owner, name))
    with pytest.raises(ReadOnlyError, match=r"Array.shape cannot be set: a\.reshape"):
        array.shape = (3, 2)  # type: ignore[misc]
    assert (array + 1).shape == (2, 3)
    host.close()


def test_truth_and_equality_of_host_memory(device: vkpar.Device) -> None:
    with vkpar.host_array((1,), "float32", device) as one, vkpar.host_array((1,), "float32", device) as other:
        assert not one
        assert (one == other).tolist() == [True]
        one.numpy()[:] = 3
        assert one
        assert ((one == other).tolist(), (one != other).tolist()) == ([False], [True])
        assert (one == 3).tolist() == (np.float32(3) == one).tolist() == (one == np.array([3])).tolist() == [True]
        assert len({one, other, one}) == 2
        with pytest.raises(OperandError):
            one == device.zeros(1)  # noqa: B015
    with pytest.raises(InvalidUsageError, match="closed"):
        bool(one)
    for shape in (0, 2, (1, 2)):
        with (
            vkpar.host_array(shape, "int8", device) as several,
            pytest.raises(InvalidUsageError, match=r"ambiguous.*\.any"),
        ):
            bool(several)
