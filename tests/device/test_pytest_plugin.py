"""The pytest plugin as a newcomer meets it: a file of tests of their own, run by a pytest of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import found, require
from helpers.process.children import child_environment

pytestmark = pytest.mark.device

HEAD = """
    import numpy as np, pytest, time, vkpar
    from vkpar.testing import assert_allclose, guarded, ulps

    SCALE = '''#version 450
    layout(local_size_x = 64) in;
    layout(binding = 0) buffer Y { float y[]; };
    layout(push_constant) uniform P { uint n; float by; };
    void main() { uint i = gl_GlobalInvocationID.x; if (i < n) y[i] *= by; }'''

    def scale(y, n, by):
        vkpar.Kernel(y.device, SCALE)(y, elements=n, push={"n": n, "by": by})
"""


@pytest.fixture
def both(compiler: None) -> list[str]:
    """The labels of lavapipe and SwiftShader, which the run has to have."""
    require("llvmpipe")
    require("swiftshader")
    return [f"{info.driver_name.split()[0].lower()}-{info.index}" for info in found()]


def run(folder: Path, body: str, *options: str, status: int, **environment: str | None) -> str:
    """Run a file of tests and return what pytest printed; ``body`` stands behind HEAD."""
    (folder / "test_mine.py").write_text(textwrap.dedent(HEAD) + textwrap.dedent(body))
    return run_as_it_is(folder, *options, status=status, **environment)


def run_as_it_is(folder: Path, *options: str, status: int, **environment: str | None) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rsfE", "--tb=short", *options]
    settings = {"COLUMNS": "200", "VKPAR_TUNING": "off"} | environment
    done = subprocess.run(
        command,
        cwd=folder,
        env=child_environment(**settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def row_of(said: str, label: str) -> list[str]:
    """Return the cells of a device's line in the table at the end."""
    return next(line.split() for line in said.splitlines() if line.startswith(f"{label} "))


def test_a_newcomers_file(tmp_path: Path, both: list[str]) -> None:
    said = run(
        tmp_path,
        """
        def test_scale(vk_device):
            x = np.linspace(-3, 3, 100, dtype="f4")
            y = vk_device.array(x)
            scale(y, 100, 1 / 3)
            assert_allclose(y, x * np.float64(np.float32(1 / 3)), ulp=1)

        def test_wrong_on_one(vk_device):
            y = vk_device.array(np.ones(100, "f4"))
            scale(y, 100, 1 if "llvmpipe" in vk_device.info.driver_name else 1 + 2.0**-21)
            assert_allclose(y, 1, ulp=1)

        def test_past_the_end(vk_device):
            scale(guarded(vk_device, 100), 101, 0)

        def test_past_the_end_of_a_view(vk_device):
            view = guarded(vk_device, 256)[64:128]
            scale(view, 65, -1)
            view.check()
        """,
        status=1,
    )
    swift, lava = both if both[0].startswith("swift") else both[::-1]
    for info in found():
        assert f"{info.name}, driver {info.driver_name} {info.driver_info}".strip() in said.split("test_mine.py")[0]
    for label in both:
        assert f"test_scale[{label}]" not in said.split("short test summary")[-1]
        assert f"FAILED test_mine.py::test_past_the_end[{label}]" in said
        assert f"FAILED test_mine.py::test_past_the_end_of_a_view[{label}]" in said
    assert f"FAILED test_mine.py::test_wrong_on_one[{swift}]" in said
    assert f"FAILED test_mine.py::test_wrong_on_one[{lava}]" not in said
    assert "100 of 100 elements (100 %) are wrong on SwiftShader" in said
    assert "element 100 of 100 is now 0.0" in said
    assert "element 64 of 64 is now -0.0" in said
    assert row_of(said, swift) == [swift, "4", "3", "4", f"test_wrong_on_one[{swift}]"]
    assert row_of(said, lava)[:3] == [lava, "4", "2"]
    assert "5 failed, 3 passed" in said


def test_the_example_is_short_and_finds_what_it_is_for(tmp_path: Path, both: list[str]) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "test_my_kernel.py"
    assert len(example.read_text().splitlines()) < 15
    shutil.copy(example, tmp_path)
    kernel = example.with_name("square.comp").read_text()
    for text, status, said in (
        (kernel, 0, "2 passed"),
        (kernel.replace("if (i < n) ", ""), 1, "23 elements outside of"),
        (kernel.replace("y[i] * y[i]", "y[i] * y[i] * 1.0000003"), 1, "ulp)"),
    ):
        (tmp_path / "square.comp").write_text(text)
        assert said in run_as_it_is(tmp_path, status=status)


def test_what_a_test_needs(tmp_path: Path, both: list[str]) -> None:
    body = """
        @pytest.mark.vkpar(features=["float16"])
        def test_half(vk_device):
            assert vk_device.info.features.float16

        @pytest.mark.vkpar(drivers="swiftshader")
        def test_driver(vk_device, vk_rig):
            assert [d.info.driver_name for d in vk_rig(2)] == ["SwiftShader driver"] * 2
            assert vk_rig(2)[0] is not vk_rig(2)[1] and vk_rig(2)[0] is vk_rig(2)[0]

        @pytest.mark.vkpar(vendors=["AMD", "nobody"])
        def test_vendor(vk_device):
            raise RuntimeError

        @pytest.mark.vkpar(features="VK_KHR_nothing")
        def test_extension(vk_rig):
            raise RuntimeError

        @pytest.mark.vkpar(min_devices=3)
        def test_three(vk_device, vk_comm):
            raise RuntimeError

        @pytest.mark.vkpar(min_devices=3)
        def test_three_without_fixtures():
            raise RuntimeError

        @pytest.mark.vkpar(min_devices=2)
        def test_sum(vk_comm):
            comm = vk_comm(3, wire="f32")
            arrays = [device.array(np.ones(1000, "f4")) for device in comm.devices]
            comm.all_reduce(arrays).wait(30)
            assert_allclose(arrays[2], 3)
            assert len({device.info.index for device in comm.devices}) == 2
    """
    said = run(tmp_path, body, status=0)
    assert "3 passed, 8 skipped" in said
    assert "lacks float16" in said
    assert "needs a device of AMD or nobody" in said
    assert "needs 3 physical devices, and 2 serve" in said
    assert "needs 1 physical devices, and 0 serve: " in said
    said = run(tmp_path, body, "--vkpar-strict", status=1)
    assert "3 passed, 2 skipped" in said  # float16 and the driver, which the other device has
    assert "(--vkpar-strict)" in said
    assert "RuntimeError" not in said


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("features=['warp']", "no feature 'warp' but extensions and bfloat16|no feature 'warp' but extensions and "),
        ("device=1", "vkpar takes min_devices, vendors, drivers, features, by name"),
        ("2", "vkpar takes min_devices, vendors, drivers, features, by name"),
    ],
)
def test_bad_markers(tmp_path: Path, both: list[str], mark: str, said: str) -> None:
    body = f"""
        @pytest.mark.vkpar({mark})
        def test_it(vk_device): pass
    """
    printed = run(tmp_path, body, status=2)
    assert any(part in printed for part in said.split("|"))


def test_which_devices(tmp_path: Path, both: list[str]) -> None:
    body = """
        def test_it(vk_device, vk_rig, pytestconfig):
            assert vk_device.limits.min_storage_buffer_offset_alignment == (
                256 if pytestconfig.getoption("--vkpar-alignment") else 16)
            assert {device.info for device in vk_rig(3)} == {vk_device.info}
    """
    said = run(tmp_path, body, "--vkpar-devices=llvmpipe", status=0)
    assert "1 passed" in said
    assert "SwiftShader" not in said
    run(tmp_path, body, "--vkpar-devices=llvmpipe*2&llvmpipe", "--vkpar-alignment", status=0)
    assert "no device matches" in run(tmp_path, body, "--vkpar-devices=voodoo2", status=2)


def test_without_a_driver_they_are_skipped_or_fail(tmp_path: Path) -> None:
    body = """
        def test_one(vk_device): pass
        def test_two(vk_comm): pass
        def test_other(): pass
    """
    none = {"VK_DRIVER_FILES": "/nonexistent/none.json", "VK_ICD_FILENAMES": None, "VK_ADD_DRIVER_FILES": None}
    said = run(tmp_path, body, status=0, **none)
    assert "1 passed, 2 skipped" in said
    assert "no device of Vulkan: no Vulkan driver found" in said
    said = run(tmp_path, body, "--vkpar-strict", status=1, **none)
    assert "1 passed, 2 errors" in said


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "handler", [signal.default_int_handler, signal.SIG_IGN], ids=["as usual", "interrupts ignored"]
)
def test_a_test_that_hangs_names_its_device_and_the_run_goes_on(
    tmp_path: Path, both: list[str], interruptible: None, handler: Any
) -> None:
    """Also where whoever started the run has interrupts ignored, as nohup in a script does."""
    signal.signal(signal.SIGINT, handler)
    said = run(
        tmp_path,
        """
        def test_hangs(vk_rig):
            queue = vk_rig(1)[0].logical.compute
            queue.wait(queue.last + 1)

        def test_long_without_devices():
            time.sleep(2.5)

        def test_after(vk_device):
            assert (vk_device.zeros(3).numpy() == 0).all()
        """,
        "--vkpar-timeout=2",
        "--vkpar-devices=llvmpipe",
        "-pno:timeout",
        status=1,
    )
    assert "1 failed, 2 passed" in said
    assert "timed out after 2 s on llvmpipe-1: llvmpipe" in said.replace("llvmpipe-0", "llvmpipe-1")
    assert "queue.wait(queue.last + 1)" in said
    assert "compute queue idle" in said


def test_several_processes_and_files_for_machines(tmp_path: Path, both: list[str]) -> None:
    pytest.importorskip("xdist")
    said = run(
        tmp_path,
        """
        @pytest.mark.parametrize("n", range(3))
        def test_it(vk_device, n):
            assert ulps(vk_device.full(4, 1 + n * 2.0**-22), 1).max() == 2 * n
        """,
        "-n2",
        "--junitxml=out.xml",
        status=0,
    )
    for label in both:
        assert row_of(said, label) == [label, "3", "0", "4", f"test_it[{label}-2]"]
    named = {p.get("value", "").split(":")[0] for p in ElementTree.parse(tmp_path / "out.xml").iter("property")}
    assert set(both) <= named


def test_the_runs_of_others_import_nothing(tmp_path: Path) -> None:
    """Also where a plugin of pytest is what has imported first."""
    (tmp_path / "test_other.py").write_text(
        textwrap.dedent(
            """
            import sys
            import pytest

            @pytest.mark.parametrize("n", [1, 2])
            def test_it(n, request):
                assert "pytest_vkpar" in sys.modules
                assert not [name for name in sys.modules if name.split(".")[0] in ("vkpar", "vulkan", "ml_dtypes")]
                assert "libvulkan" not in open("/proc/self/maps").read()
                assert not request.config.pluginmanager.has_plugin("vkpar.session")
            """
        )
    )
    said = run_as_it_is(tmp_path, "-v", status=0)
    assert "2 passed" in said
    assert "devices" not in said
    assert "vkpar" not in said.replace(f"vkpar-{os.fspath(tmp_path)}", "").split("collected")[1]


def test_messages_of_the_validation_layer_fail_the_test(tmp_path: Path, both: list[str]) -> None:
    if os.environ.get("VKPAR_VALIDATION") == "0":
        pytest.skip("no validation layer")
    said = run(
        tmp_path,
        """
        from vkpar.vulkan.machine import instance

        def test_it(vk_device):
            instance.get().messages.append("VUID-planted")
        """,
        "--vkpar-devices=llvmpipe",
        status=1,
        VKPAR_VALIDATION="1",
    )
    assert "VUID-planted" in said
