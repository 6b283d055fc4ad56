"""The validation layer's messages become errors of the next public call."""

from __future__ import annotations

import pytest
from conftest import found
from helpers.process.children import check_child, child_environment, run_child

import vkpar
from vkpar import env

pytestmark = [pytest.mark.device, pytest.mark.validation]
ON = {"VKPAR_VALIDATION": "1"}


@pytest.fixture(autouse=True)
def _needs_the_layer() -> None:
    found()
    if not env.get().validation:
        pytest.skip("no validation layer")


def test_a_misuse_is_raised_by_the_next_public_call(device: vkpar.Device) -> None:
    printed = check_child(
        """
        import sys
        import numpy as np
        import vkpar
        from vkpar.vulkan.memory.buffer import BufferRange

        device = vkpar.open_devices(sys.argv[1])[0]
        made = device.zeros(100)
        assert not made.numpy().any()
        inside = made.ranges()[0]

        def misuse():  # vkCmdFillBuffer takes multiples of four
            device.logical.fill([BufferRange(inside.buffer, inside.offset + 1, 6)], 0)

        for call in (made.numpy, lambda: device.zeros(3), device.synchronize, lambda: made.write(np.zeros(100))):
            misuse()
            try:
                call()
            except vkpar.ValidationError as error:
                assert error.messages
                print("VUID-vkCmdFillBuffer" in str(error))
        made.write(np.ones(100))
        print(made.numpy().all())
        """,
        str(device.info.index),
        environment=child_environment(**ON),
    )
    assert printed.split() == ["True"] * 5


def test_work_and_collectives_raise_it_too(device: vkpar.Device) -> None:
    printed = check_child(
        """
        import sys
        import numpy as np
        import vkpar
        from vkpar.vulkan.memory.buffer import BufferRange

        with vkpar.open_devices(sys.argv[1])[0] as device, vkpar.Communicator([device]) as comm:
            a, b = device.zeros(100), device.zeros(100)
            inside = a.ranges()[0]
            work = comm.all_reduce([a], out=[b])
            device.logical.fill([BufferRange(inside.buffer, inside.offset + 1, 6)], 0)
            for call in (work.wait, lambda: comm.all_reduce([a]).wait()):
                try:
                    call()
                    print("silent")
                except vkpar.ValidationError:
                    print("raised")
        """,
        str(device.info.index),
        environment=child_environment(**ON),
    )
    assert printed.split() == ["raised", "silent"]


def test_a_normal_run_is_silent() -> None:
    check_child(
        """
        import numpy as np
        import vkpar

        devices = vkpar.open_devices("all")
        for device in devices:
            made = device.array(np.arange(1000, dtype=np.float32))
            assert made[3:900].numpy()[0] == 3
            made.fill_zeros()
        with vkpar.Communicator(devices) as comm:
            for count in (1, 300, 100_000):
                arrays = [device.array(np.ones(count, np.float32)) for device in devices]
                comm.all_reduce(arrays).wait()
                assert arrays[-1].numpy()[-1] == len(devices)
        """,
        environment=child_environment(**ON),
    )


def test_a_missing_layer_says_what_to_install() -> None:
    done = run_child(
        """
        import vkpar
        from vkpar.vulkan.machine import instance
        instance._VALIDATION_LAYER = "VK_LAYER_that_nobody_has"
        try:
            vkpar.enumerate_devices()
        except vkpar.UnsupportedError as error:
            print(error)
        """,
        environment=child_environment(**ON),
    )
    assert done.returncode == 0, done.stderr
    assert "vulkan-validationlayers" in done.stdout


def test_this_run_is_validated() -> None:
    from vkpar.vulkan.machine import instance

    assert instance.get().validating


def test_off_by_default() -> None:
    check_child(
        """
        import vkpar
        from vkpar.vulkan.machine import instance
        vkpar.enumerate_devices()
        assert not instance.get().validating
        """
    )


BEYOND = """
#version 450
layout(local_size_x = 64) in;
layout(binding = 0) buffer A { float a[]; };
layout(push_constant) uniform P { uint first; };
void main() { a[first + gl_GlobalInvocationID.x] += 1.0; }
"""


def test_gpu_watches_every_access_of_kernels(device: vkpar.Device, compiler: None) -> None:
    """64 floats are 256 bytes, as much as their memory is padded to; the same kernel is silent without ``gpu``."""
    code = f"""
        import struct, sys
        import vkpar
        from vkpar.vulkan.machine import instance

        device = vkpar.open_devices(sys.argv[1])[0]
        print("watching" if instance.watching() else "not watching")
        kernel = vkpar.Kernel(device, {BEYOND!r})
        keep = [device.zeros(64) for _ in range(8)]
        for first in (0, 1, 0, 1000):
            try:
                kernel(1, keep[3], push=struct.pack("<I", first))
                device.synchronize()
                print("silent")
            except vkpar.ValidationError as error:
                print("raised" if "out of bounds" in str(error) else error)
        try:
            vkpar.Communicator([device, vkpar.open_devices(sys.argv[1])[0]]).close()
            print("ranks")
        except vkpar.UnsupportedError as error:
            print("refused" if "wait for each other" in str(error) else error)
        """
    done = run_child(code, str(device.info.index), environment=child_environment(VKPAR_VALIDATION="gpu"))
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split("\n")
    if printed[0] == "not watching":
        assert "GPU-assisted" in done.stderr
        pytest.skip("this validation layer does not watch kernels")
    assert printed[1:-1] == ["silent", "raised", "silent", "raised", "refused"], done.stdout + done.stderr
    done = run_child(code, str(device.info.index), environment=child_environment(**ON))
    assert done.stdout.split("\n")[:-1] == ["not watching", *["silent"] * 4, "ranks"], done.stdout + done.stderr


def test_gpu_says_so_where_the_layer_cannot_watch() -> None:
    done = run_child(
        """
        import vkpar
        from vkpar.vulkan.machine import instance
        instance._GPU_EXTENSION = "VK_EXT_that_nobody_has"
        vkpar.enumerate_devices()
        print(instance.watching(), instance.validating())
        """,
        environment=child_environment(VKPAR_VALIDATION="gpu"),
    )
    assert (done.returncode, done.stdout) == (0, "False True\n"), done.stderr
    assert "no GPU-assisted validation" in done.stderr
