"""Measures how the package is built: files, functions, circles, words without names, and the calls of operations.

    python tools/house.py [--json]

Prints a table with a bound for each measure and exits with 1 where one is exceeded. What is counted is read from the
source, or counted on Mesa's CPU driver: no figure depends on how fast the machine is.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import grimp
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "vkpar"
_ASKS = {"tests_lanes", "is_cpu", "has_wide", "on_cpu"}  # how code asks whether a device is a processor
_BENCH_FRAME = {"Options", "Report", "Row"}  # each benchmark has its own
_WORDS = {"push", "constants"}


class Measure(NamedTuple):
    """A figure and its bound.

    Attributes:
        name: what is counted.
        value: how many there are.
        most: how many there may be.
        where: the places that count, for whoever exceeds the bound.
    """

    name: str
    value: int
    most: int
    where: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        """Whether the bound is kept."""
        return self.value <= self.most


@cache
def parsed(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text())


@cache
def trees(folder: Path) -> dict[Path, ast.Module]:
    """Return the syntax trees of a folder's Python files."""
    return {path: parsed(path) for path in sorted(folder.rglob("*.py"))}


@cache
def by_kind(path: Path) -> dict[type[ast.AST], list[Any]]:
    """Return all nodes of a file by their kinds: a walk takes longer than all that is asked of it."""
    found: dict[type[ast.AST], list[Any]] = defaultdict(list)
    for node in ast.walk(parsed(path)):
        found[type(node)].append(node)
    return found


def nodes(folder: Path, *kinds: type[ast.AST]) -> Iterator[tuple[Path, Any]]:
    """Yield the nodes of some kinds, each with its file."""
    for path in trees(folder):
        for kind in kinds:
            for node in by_kind(path).get(kind, ()):
                yield path, node


def place(path: Path, node: Any = None) -> str:
    """Return where something stands, as editors take it."""
    return str(path.relative_to(ROOT)) + (f":{node.lineno}" if node is not None else "")


def listed(name: str, found: list[str], most: int) -> Measure:
    """Return the measure of how many were found."""
    return Measure(name, len(found), most, found)


# ---- shape ----


def circles() -> list[Measure]:
    """Count the circles of imports between modules, those for annotations included, and the exceptions from layers."""
    graph = grimp.build_graph("vkpar", cache_dir=None)
    below = {module: graph.find_upstream_modules(module) for module in graph.modules}
    found = {
        frozenset({module, *(other for other in others if module in below[other])}) for module, others in below.items()
    }
    rings = sorted(sorted(ring) for ring in found if len(ring) > 1)
    ignored = re.findall(r'^[^#\n]*"(vkpar\S* -> vkpar\S*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return [
        listed("circles of imports", [" <-> ".join(ring) for ring in rings], 1),
        Measure("modules in circles", sum(map(len, rings)), 2),
        listed("imports that contracts ignore", ignored, 1),
    ]


def sizes() -> list[Measure]:
    """Count large folders, files and functions, and all lines."""
    folders = Counter(path.parent for path in trees(PACKAGE) if path.name != "__init__.py")
    roomy = {PACKAGE: 18, PACKAGE / "parallel" / "models": 19}
    large = [f"{place(folder)} {count}" for folder, count in folders.items() if count > roomy.get(folder, 16)]
    lines = {path: len(path.read_text().splitlines()) for path in trees(PACKAGE)}
    functions = [
        f"{place(path, node)} {node.name} {node.end_lineno - node.lineno + 1}"
        for path, node in nodes(PACKAGE, ast.FunctionDef, ast.AsyncFunctionDef)
        if _body_lines(node) > 50
    ]
    return [
        listed("folders with more than 16 files", large, 0),
        listed("files over 400 lines", [f"{place(path)} {n}" for path, n in lines.items() if n > 400], 2),
        listed("functions over 50 lines, docstrings aside", functions, 0),
        Measure("lines of Python", sum(lines.values()), 74_320),
    ]


def _body_lines(node: ast.FunctionDef) -> int:
    first = node.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    start = first.end_lineno if documented else node.lineno - 1
    return (node.end_lineno or 0) - (start or 0)


def repeated_classes() -> Measure:
    """Count names that classes of more than two modules have."""
    modules: dict[str, set[Path]] = defaultdict(set)
    for path, node in nodes(PACKAGE, ast.ClassDef):
        if not (path.is_relative_to(PACKAGE / "bench") and node.name in _BENCH_FRAME):
            modules[node.name].add(path)
    found = [f"{name}: {', '.join(map(place, sorted(paths)))}" for name, paths in modules.items() if len(paths) > 2]
    return listed("class names in more than two modules", found, 3)


# ---- words between host and kernels ----


def words_by_index(folder: Path) -> list[str]:
    """Return the places that read push constants or specialization constants by number."""
    return [
        place(path, node)
        for path, node in nodes(folder, ast.Subscript)
        if _last_name(node.value) in _WORDS and "abi" not in path.parts
        if isinstance(node.slice, (ast.Constant, ast.Slice, ast.UnaryOp, ast.Name))
    ]


def nameless_words() -> list[str]:
    """Return the places that write five words or more in a row without names."""
    found = []
    for path, node in nodes(PACKAGE, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.keyword, ast.Call):
        if "abi" in path.parts:
            continue
        if isinstance(node, ast.Call):
            many = _last_name(node.func) in {"words", "pack"} and len(node.args) >= 5
        else:
            given = node.value
            many = isinstance(given, (ast.Tuple, ast.List))
            many = many and sum(not isinstance(each, ast.Starred) for each in given.elts) >= 5
            many = many and bool(_WORDS & {node.arg} if isinstance(node, ast.keyword) else _WORDS & _targets(node))
        if many:
            found.append(place(path, node if not isinstance(node, ast.keyword) else node.value))
    return found


def _targets(node: Any) -> set[str | None]:
    return {_last_name(target) for target in (node.targets if isinstance(node, ast.Assign) else [node.target])}


def _last_name(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def tables_naming(word: str) -> list[str]:
    """Return the tables of modules or classes that have a word as a string of its own."""
    found = []
    for path, tree in trees(PACKAGE).items():
        if path.is_relative_to(PACKAGE / "doctor"):
            continue  # its references, as those of tests, know each name once more
        bodies = [tree.body, *(node.body for node in by_kind(path).get(ast.ClassDef, ()))]
        for node in (node for body in bodies for node in body if isinstance(node, (ast.Assign, ast.AnnAssign))):
            strings = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
            if word in strings:
                found.append(place(path, node))
    return found


# ---- who asks what ----


def askers(room: str, most: int) -> Measure:
    """Count the files of a room that ask whether a device is a processor."""
    folder = PACKAGE / room
    found = {place(path) for path, node in nodes(folder, ast.Name, ast.Attribute) if _last_name(node) in _ASKS}
    return listed(f"files of {room} that ask whether a device is a processor", sorted(found), most)


def doors() -> list[Measure]:
    """Count how often ``matmul`` is handed down to what it calls, and the ways back to a kept call in its room."""
    room = PACKAGE / "ops" / "matmul"
    down = [
        place(path, node)
        for path, node in nodes(room, ast.Call)
        if any(isinstance(given, ast.Name) and given.id == "matmul" for given in node.args)
    ]
    again = [place(path, node) for path, node in nodes(room, ast.FunctionDef) if node.name == "_again"]
    return [listed("matmul handed down to itself", down, 0), listed("ways back to a kept product", again, 1)]


# ---- calls ----


class Walk(NamedTuple):
    """What one call of an operation goes through: calls of the package's functions, which functions, which files."""

    calls: int
    functions: int
    files: int


def walk(operation: Callable[[], object], warm: int = 8, within: tuple[str, ...] = ("/vkpar/",)) -> Walk:
    """Run an operation until it is warm, then once more, and count what it goes through."""
    for _ in range(warm):
        operation()
    seen: list[tuple[str, int]] = []

    def hook(frame: Any, event: str, _: object) -> None:
        if event == "call" and any(each in frame.f_code.co_filename for each in within):
            seen.append((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    sys.setprofile(hook)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return Walk(len(seen), len(set(seen)), len({name for name, _ in seen}))


def warm_calls(device: Any) -> list[Measure]:
    """Count the calls of operations that are made of several others, once they are warm."""
    import numpy as np

    import vkpar

    x, square, weight = device.zeros((4, 64)), device.zeros((64, 64)), device.zeros(64)
    blocks = np.zeros((64, 2 * 34), np.uint8)
    q = vkpar.quantized(device, blocks, (64, 64), "q8_0")
    many, indices = device.zeros((40, 64)), device.array(np.array([0, 3], np.int32))
    out = device.empty((4, 64))
    normed = vkpar.Normed(x, weight)
    whole, image, small = device.zeros(1 << 12, "int64"), device.zeros((2, 4, 16, 16)), device.zeros((4, 4, 3, 3))
    windows = image.strided((2, 4, 3, 3, 14, 14), (1024, 256, 16, 1, 16, 1))
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "matmul": (lambda: vkpar.matmul(x, square, out=out), 4),
        "matmul with swiglu": (lambda: vkpar.matmul(x, square, transpose_b=True, activation="swiglu"), 45),
        "matmul of Normed": (lambda: vkpar.matmul(normed, square), 45),
        "matmul by quantised weights, many rows": (lambda: vkpar.matmul(many, q, transpose_b=True), 45),
        "softmax along axis 0": (lambda: vkpar.softmax(x, axis=0), 45),
        "take along axis 1": (lambda: vkpar.take(x, indices, axis=1), 45),
        "concatenate": (lambda: vkpar.concatenate([x, x]), 45),
        "sum of int64": (lambda: vkpar.sum(whole), 50),
        "contiguous windows": (windows.contiguous, 20),
        "conv2d": (lambda: vkpar.conv2d(image, small, padding=1), 100),
    }
    return [Measure(f"calls: {name}", walk(each).calls, most) for name, (each, most) in calls.items()]


def collective_calls(devices: list[Any]) -> list[Measure]:
    """Count the calls of a sum over two ranks: the second time, and once it is warm."""
    import vkpar

    with vkpar.Communicator(devices, deterministic=True) as comm:
        comm.all_reduce([device.zeros(1024) for device in devices])
        arrays = [device.zeros(2048) for device in devices]
        second = walk(lambda: comm.all_reduce(arrays), 1)
        warm = walk(lambda: comm.all_reduce(arrays))
    return [
        Measure("calls: all_reduce, the second time", second.calls, 450),
        Measure("calls: all_reduce, repeated", warm.calls, 18),
        Measure("files that a repeated all_reduce goes through", warm.files, 9),
    ]


def parsing(device: Any) -> Measure:
    """Count the calls of what reads SPIR-V when shipped kernels are first used."""
    import vkpar

    first = walk(
        lambda: vkpar.matmul(device.zeros((3, 24)), device.zeros((24, 40))),
        0,
        ("pipelines/interface.py", "pipelines/shared.py"),
    )
    return Measure("calls that read SPIR-V in a first product", first.calls, 0)


def dynamic() -> Iterator[Measure]:
    """Yield what is counted on Mesa's CPU driver."""
    import vkpar

    devices = vkpar.open_devices("llvmpipe*2")
    try:
        yield parsing(devices[0])
        yield from warm_calls(devices[0])
        yield from collective_calls(devices)
    finally:
        for device in devices:
            device.close()


def measures() -> Iterator[Measure]:
    """Yield all measures."""
    yield from circles()
    yield from sizes()
    yield repeated_classes()
    yield listed("words read by index in the package", words_by_index(PACKAGE), 0)
    yield listed("words read by index in tests", words_by_index(ROOT / "tests"), 0)
    yield listed("five words or more without names", nameless_words(), 0)
    for word, what in (("q8", "wire"), ("q4_k", "kind of quantised weights"), ("gelu_tanh", "activation")):
        yield listed(f"tables that name a {what}", tables_naming(word), 1)
    yield askers("ops", 4)
    yield askers("parallel", 2)
    yield from doors()
    rows = (ROOT / "CONTRIBUTING.md").read_text()
    yield Measure("bytes of CONTRIBUTING.md", len(rows.encode()), 12 * 1024)
    yield from dynamic()


def main() -> int:
    """Print all measures; return 1 where a bound is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the measures as JSON")
    options = parser.parse_args()
    gc.disable()  # syntax trees are many objects, and none of them is garbage
    found = list(measures())
    if options.json:
        print(json.dumps([each._asdict() for each in found], indent=1))
    else:
        show(found)
    return int(not all(each.holds for each in found))


def show(found: list[Measure]) -> None:
    """Print a table, and where what exceeds its bound stands."""
    console = Console(width=100 if not sys.stdout.isatty() else None)
    table = Table("measure", "value", "bound", "")
    for each in found:
        table.add_row(each.name, f"{each.value:,}", f"{each.most:,}", "" if each.holds else "exceeded")
    console.print(table)
    for each in found:
        if not each.holds and each.where:
            console.print(f"{each.name}:", *(f"    {line}" for line in each.where), sep="\n", markup=False)


if __name__ == "__main__":
    sys.exit(main())
