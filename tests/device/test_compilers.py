"""Compilers of cards that are not here: Mesa's drivers build kernels for AMD's, Intel's and others, and run nothing.

By default all kernels of GPUs in their widest variant for one family, and the heaviest ones for an older one; where
``VKPAR_TEST_MESA25`` names the folder of a second Mesa, whose compiler is newer, all in their widest variant for the
newest families, too. The whole run takes every kernel in every variant for every family, by both.

Where ``VKPAR_TEST_STUBS`` names the folder of the libraries that stub kernel drivers, a sample of what vkpar chooses on
Intel's cards; the whole run takes all of it, for every family, by Mesa 26 too (``VKPAR_TEST_MESA26``).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import FULL, found, has
from helpers.process.children import check_child, child_environment, run_child

from vkpar.vulkan.machine import instance
from vkpar.vulkan.pipelines import declared

TOOLS = Path(__file__).resolve().parents[2] / "tools"
GPUS = r"^(?!wire_\w+?_(cpu|texel)_|matmul_(eights|narrow|short)_)"  # the others are those of CPU drivers alone
HEAVY = r"^(matmul_tiled|matvec|norm_residual|reduce_rows_sum_f)"
# Mesa 22.3 gives an invocation of navi31 128 registers at most; the newer one gives these kernels more.
SHORT_OF_REGISTERS = (
    r"(attention_(rows8|tiled|warps)|matmul_(eights|narrow|short|wide_rows16)|quantized_matvec_folded)"
    r"\w* \(\w+\): spilled"
)
SUBGROUPS = frozenset(range(61, 69))  # the capabilities of their operations
LONGEST_MS = 2000  # to compile; none takes half of that on a machine that does nothing else
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


@pytest.mark.sampled(97)
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


# ---- cards that libraries play ----


@pytest.fixture
def stubs() -> Path:
    """The libraries that stub kernel drivers."""
    folder = os.environ.get("VKPAR_TEST_STUBS")
    if folder is None:
        pytest.skip("needs stubs of kernel drivers (VKPAR_TEST_STUBS), which tools/test --full builds on Debian 12")
    return Path(folder)


@pytest.fixture
def intel(newer: Path) -> Path:
    """Intel's driver of Mesa 25."""
    return newer.with_name("intel_icd.json")


def check_chosen(made: Any, least: int) -> None:
    """No error, no spill, nothing beyond the shared memory that every card has."""
    assert made.faults == []
    assert len(made.built) > least
    assert max(each.shared for each in made.built) <= 48 * 1024


@pytest.mark.skipif(FULL, reason="the whole product has these")
@pytest.mark.parametrize("family", ["dg2", "bmg"])
def test_what_is_chosen_on_intels_cards_spills_nothing(intel: Path, stubs: Path, family: str) -> None:
    made = tool.report(family, intel, (tool.CHOSEN,), stubs=stubs, sample=11)
    check_chosen(made, 60)
    names = {each.kernel for each in made.built}
    assert any(name.startswith("matmul_tiled") for name in names)
    assert any(name.startswith("attention_tiled_rows4") for name in names)
    # What the driver says of subgroups there is not what it runs, but for the kernels that ask for a size.
    declares = {name: declared.shipped(name) for name in names - {"expression"}}
    by_subgroups = {name for name, each in declares.items() if SUBGROUPS & each.capabilities}
    assert by_subgroups == {name for name, each in declares.items() if each.subgroup_id is not None}
    asked = {each.width for each in made.built if each.kernel in by_subgroups}
    assert asked <= {8 if family == "dg2" else 16}


@pytest.mark.skipif(not FULL, reason="takes minutes")
@pytest.mark.parametrize("mesa", ["25", "26"])
@pytest.mark.parametrize("family", tool.CARDS)
def test_what_is_chosen_on_every_card(newer: Path, stubs: Path, family: str, mesa: str) -> None:
    folder = newer.parent if mesa == "25" else Path(os.environ.get("VKPAR_TEST_MESA26", "missing"))
    driver = folder / f"{tool.CARDS[family].driver}_icd.json"
    if not driver.exists() or (family in {"polaris10", "navi10", "gfx1201"} and mesa == "26"):
        pytest.skip(f"there is no {driver}, or no stub that plays {family} for it")
    made = tool.report(family, driver, (tool.CHOSEN,), stubs=stubs)
    if tool.CARDS[family].driver in {"radeon", "intel"}:
        check_chosen(made, 500)
    else:  # NVK and turnip spill a few registers of a few kernels: docs/notes/compilers.md
        assert made.errors == ()
    assert max(each.ms for each in made.built) < LONGEST_MS


def played(card: str, driver: Path, stubs: Path, *others: Path, **changes: str) -> dict[str, str]:
    stub = stubs / f"lib{tool.CARDS[card].stub}_stub.so"
    return cards.environment(tool.CARDS[card], driver, stub, *others) | {"VKPAR_VALIDATION": "0"} | changes


REFUSED = """
    import sys, time
    import vkpar

    devices = vkpar.open_devices(sys.argv[1])
    for device in devices:
        a = device.zeros(1000)
        with vkpar.capture([device]) as graph:
            b = a + a
        graph.launch().wait(10)
        b.numpy()
    start = time.monotonic()
    try:
        vkpar.Communicator(devices)
    except vkpar.CommunicatorError as error:
        print(time.monotonic() - start, error)
"""


@pytest.mark.parametrize("order", ["intel&llvmpipe", "llvmpipe&intel"])
def test_a_card_that_computes_nothing_is_refused_by_the_self_test(intel: Path, stubs: Path, order: str) -> None:
    done = run_child(REFUSED, order, environment=played("dg2", intel, stubs, *cards.beside(intel)))
    assert done.returncode == 0, done.stderr
    assert re.search(r"self-test: rank \d .* read \d+ of 3072 words of rank \d .* wrong", done.stdout)
    assert float(done.stdout.split()[0]) < 2


@pytest.mark.skipif(not FULL, reason="needs Mesa 26, which the whole run unpacks")
@pytest.mark.parametrize(("family", "name"), [("navi31", "radv"), ("ampere", "nvk"), ("adreno740", "adreno")])
@pytest.mark.parametrize("order", ["{}&llvmpipe", "llvmpipe&{}"])
def test_a_card_whose_timelines_stand_still_is_refused_by_the_self_test(
    stubs: Path, family: str, name: str, order: str
) -> None:
    """Waits for them end at once: these libraries play no more of timelines."""
    driver = Path(os.environ.get("VKPAR_TEST_MESA26", "missing")) / f"{cards.CARDS[family].driver}_icd.json"
    if not driver.exists():
        pytest.skip(f"there is no {driver}")
    stub = stubs / f"lib{cards.CARDS[family].stub}_stub.so"
    words = cards.command(driver, stub, ["-c", textwrap.dedent(REFUSED), order.format(name)])
    environment = played(family, driver, stubs, *cards.beside(driver))
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"self-test: rank \d .* its timelines that it is not", done.stdout)
    assert float(done.stdout.split()[0]) < 2


def test_a_queue_that_is_held_up_holds_up_nobody_under_validation(intel: Path, stubs: Path) -> None:
    """Timelines are exported there, whose values the layer ignores: it has to be told what is done."""
    if instance.validation_layer_version() is None:
        pytest.skip("needs the validation layer")
    code = """
        import sys
        sys.path.insert(0, sys.argv[1])
        from helpers.vulkan.parking import parked
        import vkpar

        (device,) = vkpar.open_devices("intel")
        a = device.zeros(1000)
        outs = [device.empty(1000) for _ in range(30)]
        vkpar.add(a, a, out=outs[0])
        device.synchronize()
        with parked(device):
            for out in outs:
                vkpar.add(a, a, out=out)
        device.synchronize()
    """
    tests = str(Path(__file__).resolve().parents[1])
    done = run_child(code, tests, timeout=60, environment=played("bmg", intel, stubs, VKPAR_VALIDATION="1"))
    assert done.returncode == 0, done.stderr


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
