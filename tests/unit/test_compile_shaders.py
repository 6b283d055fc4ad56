"""tools/compile_shaders.py: hashes over everything a kernel is made of, variants, and errors that name the kernel."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from vkpar.abi.formats import ELEMENTS, WIRES
from vkpar.ops.elementwise.expressions import ACTIVATIONS
from vkpar.ops.quantized.kinds import KINDS, MODULES
from vkpar.vulkan.pipelines import declared

ROOT = Path(__file__).resolve().parents[2]

KERNEL = """#version 450
#extension GL_GOOGLE_include_directive : require
#include "common/outer.glsl"
layout(local_size_x = 1) in;
layout(set = 0, binding = 0) buffer Data { uint data[]; };
void main() { data[0] = VALUE; }
"""


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile_shaders", ROOT / "tools" / "compile_shaders.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


tool = _load()


class Tree:
    """A project of two kernels, one in two variants, and a compiler whose modules only say what it was given."""

    def __init__(self, folder: Path) -> None:
        self.shaders = folder / "shaders"
        self.output = folder / "spirv"
        common = self.shaders / "common"
        common.mkdir(parents=True)
        (common / "outer.glsl").write_text('#include "inner.glsl"\n')
        (common / "inner.glsl").write_text("const uint VALUE = 1;\n")
        (self.shaders / "plain.comp").write_text(KERNEL)
        (self.shaders / "many.comp").write_text("// variants: small: N=1 | large: N=2 FAST\n" + KERNEL)
        self.compiler = folder / "glslc"
        self.compiler.write_text(
            f"#!{sys.executable}\nimport pathlib, sys\n"
            "if '--version' in sys.argv: print('glslang 99.1'); sys.exit(0)\n"
            f"sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
            "from helpers.vulkan.modules import module, name\n"
            "said = (7, 9, *name(repr(sys.argv[1:-3])))\n"
            "pathlib.Path(sys.argv[-1]).write_bytes(module(said, (15, 5, 1, *name('main'))))\n"
        )
        self.compiler.chmod(0o755)

    def build(self, everything: bool = False) -> list[str]:
        names: list[str] = tool.build(self.shaders, self.output, everything, str(self.compiler))
        return names

    def check(self) -> list[str]:
        lines: list[str] = tool.check(self.shaders, self.output)
        return lines

    def manifest(self) -> dict[str, dict[str, object]]:
        kernels: dict[str, dict[str, object]] = json.loads((self.output / "manifest.json").read_text())["kernels"]
        return kernels


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    which = shutil.which
    monkeypatch.setattr(tool.shutil, "which", lambda name: None if name.startswith("spirv-") else which(name))
    made = Tree(tmp_path)
    made.build()
    return made


def test_what_generated_kernels_begin_with_is_made_of_the_sources(tree: Tree) -> None:
    common = tree.shaders / "common"
    common.mkdir(exist_ok=True)
    (common / "more.glsl").write_text("uint more() { return 1u; }  // one\n")
    (common / "elementwise.glsl").write_text('// Words.\n#include "more.glsl"\n#include "common/more.glsl"\n//: last\n')
    assert any("elementwise.glsl" in line for line in tree.check())
    tool.write_prelude(tree.shaders, tree.output)
    assert (tree.output / "elementwise.glsl").read_text() == "uint more() { return 1u; }\n//: last\n"
    assert tree.check() == []
    (common / "more.glsl").write_text("uint more() { return 2u; }\n")
    assert any("elementwise.glsl" in line for line in tree.check())


def test_generated_kernels_are_compiled_from_their_text(tree: Tree) -> None:
    text = "#version 450\nvoid main() {}\n"
    made = [tool.Kernel("made", Path("made.py"), text=text)]
    assert tool.build(tree.shaders, tree.output, made=made) == ["made"]
    assert tool.check(tree.shaders, tree.output, made) == []
    other = [tool.Kernel("made", Path("made.py"), text=text + "//")]
    assert [line.split(":")[0] for line in tool.check(tree.shaders, tree.output, other)] == ["made"]


def test_build_writes_every_variant_and_then_nothing(tree: Tree) -> None:
    assert sorted(path.stem for path in tree.output.glob("*.spv")) == ["many_large", "many_small", "plain"]
    assert tree.check() == []
    assert tree.build() == []
    assert tree.build(everything=True) == ["many_large", "many_small", "plain"]
    entry = tree.manifest()["many_large"]
    assert entry["defines"] == ["N=2", "FAST"]
    assert entry["compiler"] == "glslc 99.1"
    command = (tree.output / "many_large.spv").read_text()
    assert "-DN=2" in command
    assert "--target-env=vulkan1.2" in command


def test_lines_of_variants_multiply(tree: Tree) -> None:
    (tree.shaders / "many.comp").write_text("// variants: a: | b: B\n// variants: x: X=1 | y: X=2\n" + KERNEL)
    kernels = {kernel.name: kernel.defines for kernel in tool.find_kernels(tree.shaders)}
    assert kernels["many_a_x"] == ("X=1",)
    assert kernels["many_b_y"] == ("B", "X=2")
    assert len(kernels) == 5


def test_a_changed_include_makes_every_user_stale(tree: Tree) -> None:
    (tree.shaders / "common" / "inner.glsl").write_text("const uint VALUE = 2;\n")
    problems = tree.check()
    assert [line.split(":")[0] for line in problems] == ["many_large", "many_small", "plain"]
    assert all("stale" in line for line in problems)
    assert tree.build() == ["many_large", "many_small", "plain"]
    assert tree.check() == []


def test_a_changed_define_makes_its_variant_stale(tree: Tree) -> None:
    source = tree.shaders / "plain.comp"
    kernel = tool.Kernel("plain", source)
    assert tool.source_hash(kernel, tree.shaders) != tool.source_hash(
        tool.Kernel("plain", source, ("N=1",)), tree.shaders
    )


def test_moving_text_between_files_changes_the_hash(tree: Tree) -> None:
    kernel = tool.Kernel("plain", tree.shaders / "plain.comp")
    before = tool.source_hash(kernel, tree.shaders)
    outer, inner = tree.shaders / "common" / "outer.glsl", tree.shaders / "common" / "inner.glsl"
    outer.write_text(outer.read_text() + inner.read_text())
    inner.write_text("")
    assert tool.source_hash(kernel, tree.shaders) != before


@pytest.mark.parametrize(
    ("name", "action", "problem"),
    [
        ("plain.spv", lambda path: path.unlink(), "plain: its .spv is missing"),
        ("plain.spv", lambda path: path.write_bytes(b"other"), "plain: its .spv is not the one in the manifest"),
        ("stray.spv", lambda path: path.write_bytes(b""), "stray.spv: belongs to no kernel"),
    ],
)
def test_missing_changed_and_extra_files_are_named(tree: Tree, name: str, action: object, problem: str) -> None:
    action(tree.output / name)  # type: ignore[operator]
    assert tree.check() == [problem]


def test_the_manifest_says_what_modules_declare(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each kernel: the package reads single ones."""
    wrong = tree.manifest()
    made = wrong["plain"]["declares"]
    assert made == declared.of_module((tree.output / "plain.spv").read_bytes()).as_dict()
    wrong["plain"]["declares"] = {**made, "readonly": [3]}  # type: ignore[dict-item]
    del wrong["many_small"]["declares"]
    (tree.output / "manifest.json").write_text(json.dumps({"kernels": wrong}, indent=1))
    assert [line.split(":")[0] for line in tree.check()] == ["many_small", "plain"]
    assert all("--reflect" in line for line in tree.check())
    assert tool.main(["--reflect", "--shaders", str(tree.shaders), "--output", str(tree.output)]) == 0
    assert "what 2 modules declare" in capsys.readouterr().out
    assert tree.check() == []
    assert tree.manifest()["plain"]["declares"] == made
    (tree.output / "plain.spv").write_bytes(b"no module")
    with pytest.raises(tool.BuildError, match=r"plain\.spv: not a SPIR-V module"):
        tool.reflect(tree.output)


def test_a_removed_source_is_named_then_dropped(tree: Tree) -> None:
    (tree.shaders / "plain.comp").unlink()
    assert tree.check() == ["plain: in the manifest, but has no source"]
    assert tree.build() == []
    assert tree.check() == []
    assert not (tree.output / "plain.spv").exists()


def test_check_exits_with_1_and_names_the_kernel(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--check", "--shaders", str(tree.shaders), "--output", str(tree.output)]
    assert tool.main(arguments) == 0
    (tree.shaders / "plain.comp").write_text(KERNEL + "\n")
    assert tool.main(arguments) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("plain: stale")


def test_errors_name_the_source(tree: Tree) -> None:
    (tree.shaders / "plain.comp").write_text('#include "nowhere.glsl"\n')
    with pytest.raises(tool.BuildError, match=r"plain.comp includes 'nowhere.glsl'"):
        tree.check()
    (tree.shaders / "plain.comp").write_text("// variants: no colon\n")
    with pytest.raises(tool.BuildError, match=r"plain.comp: .*no colon"):
        tool.find_kernels(tree.shaders)
    (tree.shaders / "plain.comp").write_text(KERNEL)
    (tree.shaders / "many_small.comp").write_text(KERNEL)
    with pytest.raises(tool.BuildError, match="both make the kernel many_small"):
        tool.find_kernels(tree.shaders)


def test_no_compiler_says_what_to_install(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    arguments = ["--shaders", str(tree.shaders), "--output", str(tree.output)]
    assert tool.main(arguments) == 0  # nothing to compile needs no compiler
    assert tool.main([*arguments, "--all"]) == 1
    assert "glslang-tools" in capsys.readouterr().err


@pytest.mark.skipif(not shutil.which("glslangValidator"), reason="needs glslangValidator")
def test_a_real_compiler_makes_spirv_and_reports_errors(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert tool.build(tree.shaders, tree.output) == ["many_large", "many_small", "plain"]
    assert (tree.output / "plain.spv").read_bytes()[:4] == b"\x03\x02\x23\x07"
    (tree.shaders / "plain.comp").write_text(KERNEL.replace("VALUE;", "UNKNOWN;"))
    with pytest.raises(tool.BuildError, match=r"(?s)plain: glslangValidator failed.*UNKNOWN"):
        tool.build(tree.shaders, tree.output)
    assert [line.split(":")[0] for line in tree.check()] == ["plain"]


def test_a_source_names_its_target_and_what_devices_must_have(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are in the manifest, and a change of either makes the kernel stale."""
    path = tree.shaders / "cores.comp"
    head = "// variants: f16: N=1 | bf16: N=2\n// target: vulkan1.3\n// needs: cooperative_matrix | bf16: bfloat16\n"
    path.write_text(head + KERNEL)
    monkeypatch.setattr(tool, "NEWER", tree.compiler.parent)
    tree.compiler.rename(tree.compiler.parent / "glslangValidator")
    monkeypatch.setattr(tool, "find_compiler", lambda wanted=None: pytest.fail("the newer compiler is for these"))
    assert tool.build(tree.shaders, tree.output) == ["cores_bf16", "cores_f16"]
    entries = tree.manifest()
    assert entries["cores_f16"]["target"] == entries["cores_bf16"]["target"] == "vulkan1.3"
    assert entries["cores_f16"]["needs"] == ["cooperative_matrix"]
    assert entries["cores_bf16"]["needs"] == ["cooperative_matrix", "bfloat16"]
    assert "vulkan1.3" in (tree.output / "cores_f16.spv").read_text()
    assert not {"target", "needs"} & set(entries["plain"])
    assert tree.check() == []
    path.write_text(head.replace("| bf16: bfloat16", "") + KERNEL)
    assert any(line.startswith("cores_bf16: stale") for line in tree.check())


def test_without_the_newer_compiler_the_error_says_how_to_get_it(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree.shaders / "cores.comp").write_text("// needs: cooperative_matrix\n" + KERNEL)
    monkeypatch.setattr(tool, "NEWER", tree.compiler.parent / "nowhere")
    old = tool.Compiler("/usr/bin/glslangValidator", "glslangValidator", "11:12.0.0", None)
    monkeypatch.setattr(tool, "find_compiler", lambda wanted=None: old)
    with pytest.raises(tool.BuildError, match=r"glslang 11:12\.0\.0 .* tools/lib/glslang\.sh"):
        tool.build(tree.shaders, tree.output)


def test_variants_of_tables(tmp_path: Path) -> None:
    """A row more is a kernel more."""
    source = tmp_path / "many.comp"
    source.write_text("// variants: one: N=1\n// variants of wires: OUT_WIRE\n" + KERNEL)
    found = {kernel.name: kernel.defines for kernel in tool.find_kernels(tmp_path)}
    assert found == {
        f"many_one_{wire.format.name}": ("N=1", f"OUT_WIRE={wire.format.code}", *["DIRECT"] * (name == "f32"))
        for name, wire in WIRES.items()
    }
    source.write_text("// variants of kinds: KIND\n" + KERNEL)
    assert [kernel.defines for kernel in tool.find_kernels(tmp_path)] == [
        (f"KIND={k.upper()}",) for k in sorted(MODULES)
    ]
    source.write_text("// variants of sums: ELEM IN OUT\n" + KERNEL)
    sums = {kernel.name: kernel.defines for kernel in tool.find_kernels(tmp_path)}
    assert sums["many_f16_word_half"] == ("ELEM=ELEM_F16", "IN=WIRE_WORD", "OUT=WIRE_F16")
    assert sums["many_f64_word_word"][-1] == "DOUBLES"
    source.write_text("// variants of what goes on: ELEM WIRE\n" + KERNEL)
    assert not any("f64" in kernel.name or "i8" in kernel.name for kernel in tool.find_kernels(tmp_path))
    source.write_text("// variants of sorts: KIND\n" + KERNEL)
    with pytest.raises(tool.BuildError, match="no variants of 'sorts', but of wires"):
        tool.find_kernels(tmp_path)


def test_the_shaders_know_every_row_of_the_tables() -> None:
    """What tables call formats, elements and kinds is defined, and functions of activations are there."""
    common = {path.name: path.read_text() for path in (ROOT / "shaders" / "common").glob("*.glsl")}
    for form in (*(wire.format for wire in WIRES.values()), *(each.exact for each in ELEMENTS.values())):
        assert f" {form.code} = " in common["wire.glsl"]
    for element in ELEMENTS.values():
        assert f" {element.code} = " in common["wire.glsl"]
    codes = [common["kinds.glsl"].split(f"#define {name.upper()} ")[1].split("\n")[0] for name in (*KINDS, "mixed")]
    assert all(kind.code in (0, int(code)) for kind, code in zip(KINDS.values(), codes, strict=False))
    assert len(set(codes)) == len(codes)
    assert "0" not in codes  # what is not defined
    assert common["activations.glsl"] == tool.activations()
    for name in ACTIVATIONS:
        assert re.search(rf"^//: {name}(_float)?$", common["functions.glsl"], re.MULTILINE)
