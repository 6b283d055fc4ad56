"""Compilers of cards that are not here: Mesa's RADV builds the kernels for AMD cards, on null hardware.

By default all kernels of GPUs in their widest variant for one family, and the heaviest ones for an older one; where
``VKPAR_TEST_MESA25`` names the folder of a second Mesa, whose compiler is newer, all in their widest variant for the
newest families, too. The whole run takes every kernel in every variant for every family, by both.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from conftest import FULL, found, has
from helpers.process.children import check_child, child_environment, run_child

TOOLS = Path(__file__).resolve().parents[2] / "tools"
GPUS = r"^(?!wire_\w+?_(cpu|texel)_|matmul_(eights|narrow|short)_)"  # the others are those of CPU drivers alone
HEAVY = r"^(matmul_tiled|matvec|norm_residual|reduce_rows_sum_f)"
# Mesa 22.3 gives an invocation of navi31 128 registers at most; the newer one gives these kernels more.
SHORT_OF_REGISTERS = (
    r"(attention_(rows8|tiled|warps)|matmul_(eights|narrow|short|wide_rows16)|quantized_matvec_folded)"
    r"\w* \(\w+\): spilled"
)
MANY = 1000  # pipelines of a family, at least: no run may pass because it built next to nothing


def _load(stem: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(stem, TOOLS / f"{stem}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(stem, loaded)
    spec.loader.exec_module(loaded)
    return loaded


tool = _load("compile_report")
cards = sys.modules["cards"]


@pytest.fixture
def radv() -> Path:
    """The installed RADV; it comes with Mesa's CPU driver, and must be there where that must."""
    driver: Path | None = cards.installed_driver()
    if driver is None:
        assert not has("llvmpipe"), "mesa-vulkan-drivers has RADV beside its CPU driver"
        pytest.skip("needs Mesa's driver for AMD cards")
    return driver


@pytest.mark.skipif(FULL, reason="the whole product has these")
def test_kernels_of_gpus_are_built_without_spills(radv: Path) -> None:
    made = tool.report("navi21", radv, ("wide",), GPUS)
    assert made.faults == []
    assert len(made.built) > 400
    assert all(each.registers > 0 and each.waves > 0 and each.code > 0 for each in made.built)
    tiled = next(each for each in made.built if each.kernel == "matmul_tiled")
    assert tiled.shared >= 16 * 1024  # two tiles of 16 by 128 floats, padded


@pytest.mark.skipif(FULL, reason="the whole product has these")
def test_heavy_kernels_are_built_for_older_cards(radv: Path) -> None:
    made = tool.report("vega10", radv, ("halves",), HEAVY)
    assert made.faults == []
    assert len(made.built) > 30


@pytest.fixture
def newer() -> Path:
    """RADV of Mesa 25."""
    folder = os.environ.get("VKPAR_TEST_MESA25")
    if folder is None:
        pytest.skip("needs Mesa 25 (VKPAR_TEST_MESA25)")
    return Path(folder) / "radeon_icd.json"


@pytest.mark.skipif(FULL, reason="the whole product has these")
@pytest.mark.parametrize("family", ["navi31", "gfx1201"])
def test_kernels_are_built_for_newer_cards(newer: Path, family: str) -> None:
    made = tool.report(family, newer, ("wide",), GPUS)
    assert made.faults == []
    assert len(made.built) > 600
    of_cores = {"matmul_coop_f16_t256", "matvec_cores_f16", "attention_cores_t256_f16", "quantized_cores_q4_k"}
    assert family != "navi31" or of_cores <= {each.kernel for each in made.built}


@pytest.mark.skipif(not FULL, reason="takes minutes")
@pytest.mark.parametrize("family", tool.AMD)
@pytest.mark.parametrize("mesa", ["installed", "25"])
def test_every_kernel_is_built_for_every_family(
    request: pytest.FixtureRequest, radv: Path, family: str, mesa: str
) -> None:
    if mesa == "25":
        radv = request.getfixturevalue("newer")
    made = tool.report(family, radv)
    if made is None:
        assert mesa == "installed"
        assert family == "gfx1201", f"{radv} does not know {family}"
        pytest.skip(f"{radv} does not know {family}")
    old = mesa == "installed" and family == "navi31" and "Mesa 22" in made.driver
    assert [fault for fault in made.faults if not (old and re.match(SHORT_OF_REGISTERS, fault))] == []
    assert len(made.built) > MANY


def test_null_hardware_is_hidden(radv: Path) -> None:
    environment = child_environment(RADV_FORCE_FAMILY="navi21", VK_DRIVER_FILES=str(radv), VK_ICD_FILENAMES=str(radv))
    environment.pop("VK_ADD_DRIVER_FILES", None)
    code = """
        import vkpar
        from vkpar.vulkan.machine import drivers

        (null,) = drivers.enumerate_devices(null_hardware=True)
        assert null.is_null_hardware and "NAVI21" in null.name, null
        for call in (vkpar.enumerate_devices, vkpar.open_devices, lambda: vkpar.open_devices("gpu")):
            try:
                call()
            except vkpar.UnsupportedError as error:
                assert "NAVI21" in str(error) and "RADV_FORCE_FAMILY" in str(error), error
            else:
                raise AssertionError("it was listed")
    """
    check_child(code, environment=environment)


def test_others_are_listed_as_if_null_hardware_were_not_there(radv: Path) -> None:
    if not has("llvmpipe"):
        pytest.skip("needs the driver llvmpipe")
    code = """
        import json, vkpar
        from vkpar.vulkan.machine import drivers

        listed, every = vkpar.enumerate_devices(), drivers.enumerate_devices(null_hardware=True)
        assert [info.index for info in listed] == list(range(len(listed)))
        print(json.dumps([[info.name for info in found] for found in (listed, every)]))
        print(vkpar.open_devices()[0].info.type)
    """
    done = run_child(code, environment=child_environment(RADV_FORCE_FAMILY="navi21"))
    assert done.returncode == 0, done.stderr
    names, kind = done.stdout.splitlines()
    listed, every = json.loads(names)
    if not any("NAVI21" in name for name in every):
        pytest.skip("the loader is told of drivers that RADV is not among")
    assert [name for name in every if "NAVI21" not in name] == listed
    assert any("llvmpipe" in name for name in listed)
    assert kind in {info.type for info in found()}
