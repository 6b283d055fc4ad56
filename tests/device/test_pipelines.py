"""Pipelines and their layouts: made once, by whichever thread comes first, and nothing is left of a failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import vkpar
from vkpar.vulkan import api
from vkpar.vulkan.pipelines import constants, interface, kernel, shader
from vkpar.vulkan.pipelines.kernel import PipelineCache, Traits

pytestmark = pytest.mark.device


@pytest.fixture
def cache(device: vkpar.Device) -> Iterator[PipelineCache]:
    """An empty cache on the device."""
    made = PipelineCache(device.logical.handle, device.logical.gate)
    yield made
    made.close()


@pytest.mark.parametrize("fails", ["vkCreateDescriptorSetLayout", "vkCreatePipelineLayout"])
def test_a_layout_that_fails_leaves_nothing(cache: PipelineCache, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vk = api.load()
    create = vk.create

    def failing(kind: str, *given: Any) -> Any:
        if fails == f"vkCreate{kind}":
            raise vkpar.OutOfMemoryError("VK_ERROR_OUT_OF_HOST_MEMORY", fails)
        return create(kind, *given)

    before = vk.live()
    monkeypatch.setattr(vk, "create", failing)
    with pytest.raises(vkpar.OutOfMemoryError, match=fails):
        cache.layout(2, 8)
    assert vk.live() == before
    monkeypatch.undo()
    assert cache.layout(2, 8) is cache.layout(2, 8)


def test_more_shared_memory_than_there_is_never_reaches_the_driver(
    device: vkpar.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some drivers end the process by it."""
    monkeypatch.setattr(kernel.Pipeline, "_create", lambda *given: pytest.fail("the driver was asked"))
    traits = Traits(label="D #1", shared_nbytes=32_767)
    with closing(PipelineCache(device.logical.handle, device.logical.gate, traits=traits)) as cache:
        for _ in range(2):
            with pytest.raises(vkpar.UnsupportedError, match=r"matvec_rows1024: 32768 bytes of shared memory"):
                cache.shipped("matvec_rows1024", 5, 64)
        assert len(cache) == 0


def test_constants_of_a_device_are_those_of_own_kernels(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users' modules may have a constant of that number themselves."""
    given: list[int | None] = []
    create = kernel.Pipeline._create

    def noting(self: Any, module: Any, entry: str, constants: dict[int, int], *rest: Any) -> Any:
        given.append(constants.get(kernel.PACKS_HALVES))
        return create(self, module, entry, constants, *rest)

    monkeypatch.setattr(kernel.Pipeline, "_create", noting)
    spirv = shader.shipped("add_f32_f32")
    with closing(PipelineCache(device.logical.handle, device.logical.gate, traits=Traits(packs_halves=True))) as cache:
        cache.shipped("add_f32_f32", 3, 24)
        held = [cache.lease("key", spirv, "main", 3, 24, own=own) for own in (True, False)]
        assert given == [1, 1, None]
        del held
    with closing(PipelineCache(device.logical.handle, device.logical.gate)) as cache:
        cache.shipped("add_f32_f32", 3, 24)
    assert given[3:] == [None]


def test_kernels_of_the_package_are_not_read(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest says what they declare; a user's module is read once."""
    read: list[bytes] = []
    reader = interface._Reader

    def noting(spirv: bytes) -> Any:
        read.append(spirv)
        return reader(spirv)

    interface.reflect.cache_clear()
    monkeypatch.setattr(interface, "_Reader", noting)
    with vkpar.Device(device.info) as fresh:
        ones = fresh.ones((8, 8))
        result = vkpar.softmax(ones @ ones + ones, axis=0).sum(1)
        with vkpar.Communicator([device, fresh], deterministic=True) as comm:
            comm.all_reduce([None, result], out=[device.empty(8), result]).wait()
        assert (result.numpy() == 1).all()
        assert not read
        text = "#version 450\nlayout(local_size_x = 1) in; layout(binding = 0) buffer A { float a[]; }; "
        text += "void main() { a[0] = 3.0; }"
        for _ in range(2):
            with vkpar.Kernel(fresh, text) as made:
                made(1, result)
        assert len(read) == 1
        assert result.numpy()[0] == 3


def test_a_pipeline_that_fails_leaves_nothing(cache: PipelineCache, monkeypatch: pytest.MonkeyPatch) -> None:
    vk = api.load()
    cache.layout(3, 24)
    before = vk.live()

    def failing(self: Any, *given: Any) -> Any:
        raise vkpar.OutOfMemoryError("VK_ERROR_OUT_OF_DEVICE_MEMORY", "vkCreateComputePipelines")

    monkeypatch.setattr(kernel.Pipeline, "_create", failing)
    with pytest.raises(vkpar.OutOfMemoryError):
        cache.shipped("add_f32_f32", 3, 24)
    assert vk.live() == before


def test_threads_share_one_layout(cache: PipelineCache, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(kernel.PipelineLayout):
        def __init__(self, *given: Any, **named: Any) -> None:
            time.sleep(0.05)
            super().__init__(*given, **named)

    monkeypatch.setattr(kernel, "PipelineLayout", Slow)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(cache.layout(2, 8))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4
    assert len(set(map(id, found))) == 1


def test_threads_make_pipelines_side_by_side(cache: PipelineCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two different ones at once, each of them once."""
    both, create, made = threading.Barrier(2), kernel.Pipeline._create, []

    def slow(self: Any, *given: Any) -> Any:
        made.append(self.name)
        both.wait(30)  # breaks where one thread waits for the other
        return create(self, *given)

    monkeypatch.setattr(kernel.Pipeline, "_create", slow)
    names = ["add_f32_f32", "add_f32_f16"]
    found: list[tuple[str, Any]] = []
    threads = [
        threading.Thread(target=lambda name=name: found.append((name, cache.shipped(name, 3, 24))))
        for name in 2 * names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert len(set(found)) == 2
    assert sorted(made) == sorted(names)


def test_constants_that_are_computed_from_others(device: vkpar.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that leaves branches by them in gets modules with numbers; all compute the same."""
    made = []
    monkeypatch.setattr(kernel, "frozen", lambda spirv, given: made.append(given) or constants.frozen(spirv, given))
    text = """
        #version 450
        layout(local_size_x = 1) in;
        layout(constant_id = 0) const int A = -7;
        layout(constant_id = 1) const uint B = 4000000000u;
        layout(constant_id = 2) const bool T = true;
        layout(constant_id = 3) const float F = 1.5;
        const uint WRAPPED = B * 3u, CHOSEN = T && A < 0 ? 5u : 6u;
        const uvec2 PAIR = uvec2(B >> 3, ~WRAPPED);
        const float HALVED = !T ? 0.25 : F;
        layout(binding = 0) buffer Out { uint a[]; };
        void main() {
            a[0] = uint(A / 2); a[1] = uint(A >> 1); a[2] = WRAPPED; a[3] = B / 7u; a[4] = B % 7u; a[5] = CHOSEN;
            a[6] = PAIR.x; a[7] = PAIR.y; a[8] = floatBitsToUint(HALVED); a[9] = uint(-A); a[10] = A > 3 ? 1u : 2u;
        }
    """
    out = device.zeros(11, "uint32")
    vkpar.Kernel(device, text)(1, out)
    big, wrapped = 4_000_000_000, 12_000_000_000 % 2**32
    numbers = [2**32 - 3, 2**32 - 4, wrapped, big // 7, big % 7, 5, big >> 3, wrapped ^ 0xFFFFFFFF, 0x3FC00000, 7, 2]
    assert out.tolist() == numbers
    assert bool(made) == ("SwiftShader" in device.name)
