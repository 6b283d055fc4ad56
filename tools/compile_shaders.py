#!/usr/bin/env python3
"""Compile ``shaders/*.comp`` to the SPIR-V that ships in ``vkpar/spirv``, with a manifest of hashes.

The manifest also says what each module declares, which the package takes from there: it reads no SPIR-V of its own.

A source is one kernel, or several when it holds a line ``// variants: small: TILE=32 | large: TILE=128 FAST``:
each variant is the kernel ``<stem>_<variant>``, compiled with those macros defined. Several such lines multiply.
A line ``// variants of wires: OUT_WIRE`` has a variant for each row of a table of the package, see :data:`TABLES`,
which gives those macros their values.

A line ``// target: vulkan1.3`` names another target than Vulkan 1.2. A line ``// needs: cooperative_matrix | bf16:
bfloat16`` names what devices must have for it (the names of VKPAR_WITHOUT), of all variants and of those named; the
manifest has both. Sources with such a line take the newer compiler that tools/lib/glslang.sh gets.

    tools/compile_shaders.py            compile what changed
    tools/compile_shaders.py --all      compile everything
    tools/compile_shaders.py --check    compare only; exit status 1 names what is stale (needs no compiler)
    tools/compile_shaders.py --reflect  write what the SPIR-V declares into the manifest anew (needs no compiler)
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = "manifest.json"
TARGET = "vulkan1.2"
NEWER = ROOT / ".cache" / "glslang" / "bin"
_NEWEST_KNOWN = 16  # major version of the first glslang that compiles all kernels
PRELUDE = "elementwise.glsl"
_PRELUDE_SOURCE = "common/elementwise.glsl"
ACTIVATIONS = "common/activations.glsl"
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
_VARIANTS = re.compile(r"^//[ \t]*variants(?:[ \t]+of[ \t]+([\w ]+))?:(.*)$", re.MULTILINE)
_TARGET = re.compile(r"^//[ \t]*target:[ \t]*(\S+)[ \t]*$", re.MULTILINE)
_NEEDS = re.compile(r"^//[ \t]*needs:(.*)$", re.MULTILINE)


class BuildError(Exception):
    """A source, an include or a compiler that stops the build; the message says which."""


@dataclass(frozen=True)
class Kernel:
    """One SPIR-V module: a source and the macros it is compiled with.

    A generated one has its ``text``, and as source the module that wrote it. ``needs`` are features of devices.
    """

    name: str
    source: Path
    defines: tuple[str, ...] = ()
    text: str | None = None
    target: str = TARGET
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compiler:
    """A GLSL compiler found on this machine."""

    path: str
    name: str
    version: str
    optimizer: str | None

    @property
    def label(self) -> str:
        """Name and version, as the manifest records them."""
        return f"{self.name} {self.version}" + (" + spirv-opt -O" if self.optimizer else "")

    def command(self, kernel: Kernel, source: Path, shaders: Path, output: Path) -> list[str]:
        """Return the command line that compiles the ``source`` of ``kernel`` to ``output``."""
        macros = [f"-D{define}" for define in kernel.defines]
        if self.name == "glslc":
            flags = ["-O", f"--target-env={kernel.target}", "-fshader-stage=compute", "-I", str(shaders)]
            return [self.path, *flags, *macros, str(source), "-o", str(output)]
        flags = ["-V", "--target-env", kernel.target, "-S", "comp", f"-I{shaders}"]
        return [self.path, *flags, *macros, str(source), "-o", str(output)]


def generated() -> list[Kernel]:
    """Return the kernels of the package's elementwise operations, which vkpar/ops writes from expressions."""
    from vkpar.ops.elementwise import table

    path = Path(table.__file__)
    return [
        Kernel(name, path, text=each.glsl(kind, form))
        for each in table.BUILTINS.values()
        for name, kind, form in each.kernels()
    ]


def activations() -> str:
    """Return the GLSL of the functions that follow products, from the package's table of them."""
    from vkpar.ops.elementwise.expressions import OF_FLOATS
    from vkpar.ops.tiles.epilogue import ACTIVATIONS as CODES

    functions = {name: f"f_{name}" if name in OF_FLOATS else f"f_{name}_float" for name in CODES}
    codes = "".join(f"const uint {name.upper()} = {code}u;\n" for name, code in CODES.items())
    cases = " else ".join(
        f"if (kind == {name.upper()}) {{\n        EACH({function})\n    }}" for name, function in functions.items()
    )
    return f"""\
// What a product's epilogue applies to each element: functions of elementwise expressions, four at a time. Written by
// tools/compile_shaders.py, of the activations in vkpar/ops/elementwise/expressions.py.
#ifndef VKPAR_ACTIVATIONS_GLSL
#define VKPAR_ACTIVATIONS_GLSL

#include "functions.glsl"

{codes}
#define EACH(F) y = vec4(F(x.x), F(x.y), F(x.z), F(x.w));

vec4 activated(uint kind, vec4 x) {{
    vec4 y = x;
    {cases}
    return y;
}}

#endif
"""


def flattened(source: Path, shaders: Path) -> str:
    """Return a source with what it includes in place, each file once, and without comments but those of "//:"."""
    seen: set[Path] = set()

    def lines(path: Path) -> Iterator[str]:
        if path.resolve() in seen:
            return
        seen.add(path.resolve())
        for line in path.read_text().splitlines():
            found = _INCLUDE.match(line)
            if found:
                name = found.group(1)
                yield from lines(next(p for p in (path.parent / name, shaders / name) if p.is_file()))
            elif line.startswith("//:"):
                yield line
            elif line.partition("//")[0].strip():
                yield line.partition("//")[0].rstrip()

    return "\n".join(lines(source)) + "\n"


def _variants(source: Path) -> Iterator[Kernel]:
    """Yield the kernels of a source: the product of its variants lines, in whatever order they stand."""
    text = source.read_text()
    axes = [_axis(source, *match.groups()) for match in _VARIANTS.finditer(text)]
    target = _TARGET.search(text)
    for chosen in itertools.product(*axes):
        names = [name for name, _ in chosen]
        yield Kernel(
            "_".join([source.stem, *names]),
            source,
            tuple(define for _, defines in chosen for define in defines),
            target=target.group(1) if target else TARGET,
            needs=_needs(text, names),
        )


def _needs(text: str, variants: Sequence[str]) -> tuple[str, ...]:
    """Return the features that a source says its kernel of some variants needs."""
    needs: list[str] = []
    for item in (item for match in _NEEDS.finditer(text) for item in match.group(1).split("|")):
        variant, colon, names = item.rpartition(":")
        if not colon or variant.strip() in variants:
            needs += names.split()
    return tuple(needs)


def _of_wires() -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    from vkpar.abi.formats import WIRES, WORD

    for wire in WIRES.values():
        yield wire.format.name, (wire.format.code,), ("DIRECT",) if wire.format is WORD else ()


def _of_what_goes_on() -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    from vkpar.abi.formats import ELEMENTS, finals

    for name, element in ELEMENTS.items():
        for form in () if element.in_words else finals(name):
            yield f"{name}_{form.name}", (element.code, form.code), element.macros


def _of_sums() -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    from vkpar.abi.formats import ELEMENTS, sums

    for name, element in ELEMENTS.items():
        for come, go in sums(name):
            yield f"{name}_{come.name}_{go.name}", (element.code, come.code, go.code), element.macros


def _of_kinds() -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    from vkpar.ops.quantized.kinds import MODULES

    for name in MODULES:
        yield name, (name.upper(),), ()


# By what a line calls them: a variant's name, the values of the macros that the line names, and more macros.
TABLES: Final = {"wires": _of_wires, "what goes on": _of_what_goes_on, "sums": _of_sums, "kinds": _of_kinds}


def _axis(source: Path, table: str | None, text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the variants of a line, with their macros."""
    if table is not None:
        if table not in TABLES:
            raise BuildError(f"{source.name}: there are no variants of {table!r}, but of {', '.join(TABLES)}")
        macros = text.split()
        return [
            (name, (*map("=".join, zip(macros, values, strict=True)), *more)) for name, values, more in TABLES[table]()
        ]
    axis = []
    for item in text.split("|"):
        name, colon, defines = item.strip().partition(":")
        if not colon or not name.isidentifier():
            raise BuildError(f"{source.name}: bad variant {item.strip()!r}, expected NAME: DEFINE ...")
        axis.append((name, tuple(defines.split())))
    return axis


def find_kernels(shaders: Path) -> list[Kernel]:
    """Return every kernel of the folder, ordered by name.

    Raises:
        BuildError: a broken ``variants`` line, or two kernels of one name.
    """
    kernels = sorted((k for path in shaders.glob("*.comp") for k in _variants(path)), key=lambda k: k.name)
    for first, second in itertools.pairwise(kernels):
        if first.name == second.name:
            raise BuildError(f"{first.source.name} and {second.source.name} both make the kernel {first.name}")
    return kernels


def included_files(source: Path, shaders: Path) -> list[Path]:
    """Return ``source`` and all that it includes, directly or not, ordered by path.

    Raises:
        BuildError: an include that does not exist.
    """
    seen: set[Path] = set()
    pending = [source.resolve()]
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in _INCLUDE.findall(path.read_text()):
            found = next((p for p in (path.parent / name, shaders / name) if p.is_file()), None)
            if found is None:
                raise BuildError(f"{path.name} includes {name!r}, which does not exist")
            pending.append(found.resolve())
    return sorted(seen)


def source_hash(kernel: Kernel, shaders: Path) -> str:
    """Return the sha256 over the kernel's source, everything it includes, and its macros."""
    digest = hashlib.sha256()
    if kernel.text is not None:
        digest.update(kernel.text.encode())
        return digest.hexdigest()
    for path in included_files(kernel.source, shaders):
        text = path.read_text().encode()
        digest.update(f"{path.relative_to(shaders.resolve()).as_posix()}\0{len(text)}\0".encode() + text)
    digest.update("\0".join(("defines", *kernel.defines)).encode())
    return digest.hexdigest()


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_manifest(output: Path) -> dict[str, dict[str, object]]:
    """Return the manifest's kernels by name; empty without a manifest."""
    path = output / MANIFEST
    if not path.is_file():
        return {}
    kernels: dict[str, dict[str, object]] = json.loads(path.read_text())["kernels"]
    return kernels


def _write_manifest(output: Path, kernels: dict[str, dict[str, object]]) -> None:
    """Write it with a line for each kernel: the package reads single ones, see vkpar/vulkan/pipelines/declared.py."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(kernels[name])}" for name in sorted(kernels))
    text = f'{{\n "target": {json.dumps(TARGET)},\n "kernels": {{\n{lines}\n }}\n}}\n'
    partial = output / (MANIFEST + ".new")
    partial.write_text(text)
    os.replace(partial, output / MANIFEST)


def problem_of(kernel: Kernel, entry: dict[str, object] | None, shaders: Path, output: Path) -> str | None:
    """Return what is wrong with the compiled form of ``kernel``; None when it is current."""
    module = output / f"{kernel.name}.spv"
    if entry is None:
        return "not in the manifest"
    if (entry.get("target", TARGET), tuple(entry.get("needs", ()))) != (kernel.target, kernel.needs):  # type: ignore[arg-type]
        return "stale: its target or what it needs changed"
    if entry["source_sha256"] != source_hash(kernel, shaders):
        return "stale: its source, an include or its defines changed"
    if not module.is_file():
        return "its .spv is missing"
    return None if entry["spirv_sha256"] == _file_hash(module) else "its .spv is not the one in the manifest"


def _declares(code: bytes) -> dict[str, object]:
    from vkpar.vulkan.pipelines import declared

    return declared.of_module(code).as_dict()


def reflect(output: Path) -> list[str]:
    """Write what the modules declare into the manifest, and return the names of those for which that changed.

    Raises:
        BuildError: a module that cannot be read.
    """
    manifest, changed = read_manifest(output), []
    for name, entry in manifest.items():
        module = output / f"{name}.spv"
        try:
            found = _declares(module.read_bytes())
        except (OSError, ValueError, LookupError) as error:
            raise BuildError(f"{module}: {error}") from error
        if entry.get("declares") != found:
            entry["declares"] = found
            changed.append(name)
    _write_manifest(output, manifest)
    return changed


def check(shaders: Path, output: Path, made: Sequence[Kernel] = ()) -> list[str]:
    """Return one line per kernel whose SPIR-V does not belong to its source, and per file of no kernel.

    Args:
        shaders: the folder of the sources.
        output: that of the SPIR-V.
        made: generated kernels.
    """
    manifest = read_manifest(output)
    kernels = {kernel.name: kernel for kernel in (*find_kernels(shaders), *made)}
    lines = []
    if _prelude(shaders) not in (None, _read(output / PRELUDE)):
        lines.append(f"{PRELUDE}: stale: it is not made of {_PRELUDE_SOURCE} and what that includes")
    for name, kernel in kernels.items():
        problem = problem_of(kernel, manifest.get(name), shaders, output)
        if not problem and manifest[name].get("declares") != _declares((output / f"{name}.spv").read_bytes()):
            problem = "the manifest says something else of what it declares: run tools/compile_shaders.py --reflect"
        if problem:
            lines.append(f"{name}: {problem}")
    lines += [f"{name}: in the manifest, but has no source" for name in sorted(manifest.keys() - kernels.keys())]
    files = {path.stem for path in output.glob("*.spv")}
    lines += [f"{name}.spv: belongs to no kernel" for name in sorted(files - kernels.keys() - manifest.keys())]
    return lines


def _prelude(shaders: Path) -> str | None:
    """Return what generated kernels begin with; None where the folder has no such source."""
    source = shaders / _PRELUDE_SOURCE
    return flattened(source, shaders) if source.is_file() else None


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def write_prelude(shaders: Path, output: Path) -> None:
    """Write what generated kernels begin with, where the folder has it; they are made of it."""
    text = _prelude(shaders)
    if text is not None and text != _read(output / PRELUDE):
        output.mkdir(parents=True, exist_ok=True)
        (output / PRELUDE).write_text(text)


def _version(path: str, name: str) -> str:
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    pattern = r"glslang\s+v?([\w.]+)" if name == "glslc" else r"Glslang Version:\s*(\S+)"
    match = re.search(pattern, text) or re.search(r"(\d[\w.:]*)", text)
    return match.group(1) if match else "unknown"


def find_newer_compiler() -> Compiler:
    """Return the compiler of kernels that need features of devices; their code is left to the drivers to optimize.

    spirv-opt keeps cooperative matrices alive over branches and loops, as values that are merged, where the drivers'
    own passes would not.

    Raises:
        BuildError: there is none that knows these.
    """
    path = NEWER / "glslangValidator"
    if path.is_file():
        return Compiler(str(path), path.name, _version(str(path), path.name), None)
    found = replace(find_compiler("glslangValidator"), optimizer=None)
    if int(re.split(r"[:.]", found.version.rpartition(":")[2])[0] or 0) < _NEWEST_KNOWN:
        raise BuildError(f"glslang {found.version} does not know cooperative matrices: run tools/lib/glslang.sh")
    return found


def find_compiler(wanted: str | None = None) -> Compiler:
    """Return the GLSL compiler to use.

    Raises:
        BuildError: none is installed.
    """
    for name in (wanted,) if wanted else ("glslangValidator", "glslc"):
        path = shutil.which(name)
        if path:
            base = Path(path).name
            optimizer = None if base == "glslc" else shutil.which("spirv-opt")
            return Compiler(path, base, _version(path, base), optimizer)
    raise BuildError("no GLSL compiler found: install glslang-tools (glslangValidator) or glslc")


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{what}: {Path(command[0]).name} failed\n{done.stdout}{done.stderr}".rstrip())


def compile_kernel(kernel: Kernel, compiler: Compiler, shaders: Path, output: Path) -> dict[str, object]:
    """Compile one kernel and return its manifest entry.

    Raises:
        BuildError: the compiler, the optimizer or the validator refused it; the message holds its log.
    """
    with tempfile.TemporaryDirectory() as folder:
        module, source = Path(folder) / f"{kernel.name}.spv", kernel.source
        if kernel.text is not None:
            source = Path(folder) / f"{kernel.name}.comp"
            source.write_text(kernel.text)
        _run(compiler.command(kernel, source, shaders, module), kernel.name)
        if compiler.optimizer:
            _run(
                [compiler.optimizer, f"--target-env={kernel.target}", "-O", str(module), "-o", str(module)], kernel.name
            )
        newer = NEWER / "spirv-val"
        validator = str(newer) if kernel.needs and newer.is_file() else shutil.which("spirv-val")
        if validator:
            _run([validator, "--target-env", kernel.target, str(module)], kernel.name)
        code = module.read_bytes()
    partial = output / f"{kernel.name}.spv.new"
    partial.write_bytes(code)
    os.replace(partial, output / f"{kernel.name}.spv")
    return {
        "source": kernel.source.name,
        "defines": list(kernel.defines),
        "source_sha256": source_hash(kernel, shaders),
        "spirv_sha256": hashlib.sha256(code).hexdigest(),
        "compiler": compiler.label,
        "declares": _declares(code),
        **({"target": kernel.target} if kernel.target != TARGET else {}),
        **({"needs": list(kernel.needs)} if kernel.needs else {}),
    }


def build(
    shaders: Path,
    output: Path,
    everything: bool = False,
    compiler: str | None = None,
    made: Sequence[Kernel] = (),
) -> list[str]:
    """Compile what changed, drop what has no source any more, and return the names of the compiled kernels.

    Raises:
        BuildError: no compiler, or a kernel that does not compile; kernels compiled before it stay compiled.
    """
    output.mkdir(parents=True, exist_ok=True)
    kernels = [*find_kernels(shaders), *made]
    manifest = read_manifest(output)
    stale = [k for k in kernels if everything or problem_of(k, manifest.get(k.name), shaders, output)]
    names = {kernel.name for kernel in kernels}
    manifest = {name: entry for name, entry in manifest.items() if name in names}
    for path in output.glob("*.spv"):
        if path.stem not in names:
            path.unlink()
    tools: dict[bool, Compiler] = {}
    try:
        for kernel in stale:
            newer = bool(kernel.needs) and compiler is None
            tool = tools.get(newer) or (find_newer_compiler() if newer else find_compiler(compiler))
            tools[newer] = tool
            manifest[kernel.name] = compile_kernel(kernel, tool, shaders, output)
    finally:
        _write_manifest(output, manifest)
    return [kernel.name for kernel in stale]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="compare only, without a compiler")
    parser.add_argument("--reflect", action="store_true", help="write anew what the SPIR-V declares, no compiler")
    parser.add_argument("--all", action="store_true", help="compile every kernel, changed or not")
    parser.add_argument("--compiler", help="program to use instead of glslangValidator or glslc on the PATH")
    parser.add_argument("--shaders", type=Path, default=ROOT / "shaders", help="folder of the sources")
    parser.add_argument("--output", type=Path, default=ROOT / "vkpar" / "spirv", help="folder of the SPIR-V")
    options = parser.parse_args(argv)
    try:
        own = options.output.resolve() == (ROOT / "vkpar" / "spirv").resolve()
        if options.check:
            problems = check(options.shaders, options.output, generated() if own else ())
            if own and activations() != _read(options.shaders / ACTIVATIONS):
                problems.append(f"{ACTIVATIONS}: stale: it is not made of the table of activations")
            print("\n".join(problems) or "every kernel matches its source")
            return 1 if problems else 0
        if own and activations() != _read(options.shaders / ACTIVATIONS):
            (options.shaders / ACTIVATIONS).write_text(activations())
        if options.reflect:
            names = reflect(options.output)
            print(f"the manifest says anew what {len(names)} modules declare")
            return 0
        write_prelude(options.shaders, options.output)
        names = build(options.shaders, options.output, options.all, options.compiler, generated() if own else ())
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"compiled {', '.join(names)}" if names else "nothing to compile: every kernel matches its source")
    return 0


if __name__ == "__main__":
    sys.exit(main())
