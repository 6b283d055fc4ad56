"""tools/compile_report.py without a driver: what it reads of modules, the variants, tables and exit statuses."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType

import pytest
from helpers.vulkan.modules import module, name

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def _load(stem: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(stem, TOOLS / f"{stem}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[stem] = loaded
    spec.loader.exec_module(loaded)
    return loaded


sys.path.insert(0, str(TOOLS))
variants, cards, null_compiler = (_load(stem) for stem in ("kernel_variants", "cards", "null_compiler"))
tool = _load("compile_report")

# Constants 0 (a size, no name), 1 (KEEP), 3 (a truth); bindings 0 (a storage buffer) and 2 (a texel buffer).
KERNEL = module(
    (17, 1),
    (5, 11, *name("KEEP")),
    (5, 12, *name("wide")),
    (71, 10, 1, 0),
    (71, 11, 1, 1),
    (71, 12, 1, 3),
    (71, 20, 33, 0),
    (71, 21, 33, 2),
    (50, 1, 10, 64),
    (50, 1, 11, 1),
    (49, 2, 12),
    (32, 30, 12, 5),
    (32, 31, 0, 6),
    (59, 30, 20, 12),
    (59, 31, 21, 0),
)
BUILT = null_compiler.Built("copy", "copy.comp", "plain", (), 24, 16, 0, 512, 0, 100, 16, 64, 3)


def test_a_module_is_read() -> None:
    found = variants.read("norm_rms_f32_kept", "norm.comp", KERNEL)
    assert [(each.number, each.name, each.truth) for each in found.constants] == [
        (0, "GROUP", False),
        (1, "KEEP", False),
        (3, "wide", True),
    ]
    assert found.bindings == {0: False, 2: True}
    assert found.capabilities == {1}


@pytest.mark.parametrize(
    ("kernel", "variant", "values"),
    [
        ("norm_rms_f32_kept", "plain", (256, 1, 0, 0)),
        ("norm_rms_f32_kept", "wide", (1024, 4, 0, 1)),
        ("norm_rms_f32_long", "wide", (1024, 1, 0, 1)),
        ("softmax_log_f16_kept", "halves", (256, 4, 0, 1)),
    ],
)
def test_variants_have_the_constants_of_the_library(kernel: str, variant: str, values: tuple[int, ...]) -> None:
    assert variants.read(kernel, "x.comp", KERNEL).values(variant) == values


def test_a_constant_that_nobody_knows_is_refused() -> None:
    strange = variants.read("copy", "copy.comp", module((5, 11, *name("NEW")), (71, 11, 1, 1), (50, 1, 11, 7)))
    with pytest.raises(variants.ReportError, match=r"copy is specialized by NEW \(number 1\).*_VALUES"):
        strange.values("plain")


def test_every_shipped_kernel_has_variants() -> None:
    shipped = list(variants.modules())
    assert len(shipped) >= 560
    assert all(each.values(variant) is not None for each in shipped for variant in variants.VARIANTS)


def _report(**changes: object) -> object:
    members = {"family": "navi21", "device": "D", "driver": "M", "built": (BUILT,), "left": {}, "errors": ()}
    return tool.Report(**(members | changes))


def test_spills_and_errors_are_faults() -> None:
    spilled = replace(BUILT, spills=3)
    assert _report().faults == []
    assert _report(built=(spilled,)).faults == ["copy (plain): spilled 3 registers"]
    assert _report(errors=("copy (plain): why",)).faults == ["copy (plain): why"]


def test_the_table_has_the_most_of_each_source() -> None:
    more = replace(BUILT, registers=40, waves=8, scratch=64, variant="wide")
    two = [_report(built=(BUILT, more)), _report(family="vega10", built=(replace(BUILT, source="add.comp"),))]
    lines = tool.table(two).splitlines()
    assert lines[0] == "| kernel | pipelines | shared memory | navi21 | vega10 |"
    assert lines[2:] == [
        "| copy.comp | 2 | 512 | 40+16, 8, 64 B scratch | - |",
        "| add.comp | 1 | 512 | - | 24+16, 16 |",
    ]
    assert tool.table(two, each=True).splitlines()[2].startswith("| copy | 2 |")


def test_notes_say_what_was_not_built_and_what_is_wrong() -> None:
    assert tool.notes(_report(left={"a": "wings", "b": "wings"}, errors=("why",))) == [
        "navi21: D, M, 1 pipelines of 1 kernels",
        "  subgroups: 1 of 64; 0 pipelines spill; 512 B of shared memory at most; 0 s, copy 0.00 s of them",
        "  not built, since the card has no wings: a, b",
        "  FAULT: why",
    ]


@pytest.mark.parametrize(("errors", "status"), [((), 0), (("why",), 1)])
def test_exit_statuses(
    errors: tuple[str, ...], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "report", lambda *given, **named: _report(errors=errors))
    assert tool.main(["--family", "navi21", "--driver", "icd.json"]) == status
    assert "navi21: D, M" in capsys.readouterr().out


def test_a_family_that_the_driver_does_not_know(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "report", lambda *given, **named: None)
    assert tool.main(["--family", "gfx1201", "--driver", "icd.json"]) == 2
    assert "icd.json does not know gfx1201" in capsys.readouterr().err
    assert tool.main(["--driver", "icd.json"]) == 2  # none at all


def test_no_driver_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(cards, "installed_driver", lambda: None)
    monkeypatch.setattr(cards, "driver_of", lambda card, of=cards.driver_of: of(card, tmp_path))
    assert tool.main([]) == 2
    assert "mesa-vulkan-drivers" in capsys.readouterr().err


def test_the_child_sees_one_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", "other.json")
    monkeypatch.setenv("VKPAR_VALIDATION", "1")
    monkeypatch.setenv("RADV_DEBUG", "nocache")
    driver = tmp_path / "icd.json"
    made = cards.environment(cards.CARDS["navi21"], driver, None)
    assert made["VK_DRIVER_FILES"] == made["VK_ICD_FILENAMES"] == str(driver)
    assert made["RADV_FORCE_FAMILY"] == "navi21"
    assert not {"VK_ADD_DRIVER_FILES", "VKPAR_VALIDATION", "RADV_DEBUG"} & set(made)
    assert cards.environment(cards.CARDS["navi31"], driver, None, older=True)["RADV_FORCE_FAMILY"] == "gfx1100"


def test_a_stub_plays_a_card_that_no_driver_plays_itself(tmp_path: Path) -> None:
    card, driver, stub = cards.CARDS["dg2"], tmp_path / "intel_icd.json", tmp_path / "libintel_stub.so"
    with pytest.raises(variants.ReportError, match=r"libintel_stub\.so: run tools/test"):
        cards.stub_of(card, driver, tmp_path)
    stub.touch()
    assert cards.stub_of(card, driver, tmp_path) == stub
    assert cards.stub_of(cards.CARDS["navi21"], driver, tmp_path) is None
    made = cards.environment(card, driver, stub)
    assert (made["INTEL_STUB_GPU_PLATFORM"], made["LD_PRELOAD"]) == ("dg2", str(stub))
    assert cards.command(driver, stub, ["x.py"]) == [sys.executable, "x.py"]


def test_a_driver_of_a_newer_system_is_run_by_its_loader(tmp_path: Path) -> None:
    driver, stub = tmp_path / "radeon_icd.json", tmp_path / "libamdgpu_stub.so"
    for file in ("ld-linux-x86-64.so.2", stub.name):
        (tmp_path / file).touch()
    card = cards.CARDS["navi31"]
    assert cards.stub_of(card, driver, tmp_path) == stub  # such drivers play no card themselves any more
    made = cards.environment(card, driver, stub)
    assert made["AMDGPU_GPU_ID"] == "navi31"
    assert not {"LD_PRELOAD", "RADV_FORCE_FAMILY"} & set(made)
    loader, *words = cards.command(driver, stub, ["x.py"])
    assert loader == str(tmp_path / "ld-linux-x86-64.so.2")
    assert words[:2] == ["--preload", str(stub)]
    assert words[-2:] == [sys.executable, "x.py"]


def test_a_driver_that_ends_its_process_is_an_error_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is tried once more, then the report goes on behind the kernel, in another process."""
    first, begun = {"device": "D", "driver": "M"}, {"begun": "bad plain ()", "kernel": "bad", "variant": "plain"}
    runs = iter(
        [
            subprocess.CompletedProcess([], 1, "\n".join(map(json.dumps, (first, begun))), "too much\n"),
            subprocess.CompletedProcess([], 1, "\n".join(map(json.dumps, (first, begun))), "too much\n"),
            subprocess.CompletedProcess([], 0, "\n".join(map(json.dumps, (first, asdict(BUILT)))), ""),
        ]
    )
    commands = []

    def run(command: list[str], **given: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return next(runs)

    monkeypatch.setattr(tool.subprocess, "run", run)
    found = tool.report("navi21", tmp_path / "icd.json")
    assert found.errors == ("bad (plain): the driver ended the process: too much",)
    assert [each.kernel for each in found.built] == ["copy"]
    assert [command[-1] for command in commands] == ["", "", "bad plain ()"]
