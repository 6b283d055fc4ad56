#!/usr/bin/env python3
"""Compare vkpar's all_reduce with another library's: both are run in turns, and compared round by round.

    tools/compare.py --peer nccl --devices nvidia -b 8K -e 128M --json results.json
    tools/compare.py --peer gloo --devices 'llvmpipe*2' --variant f16:wire=f16 --variant f32:wire=f32
    tools/compare.py --from results.json --plot results.png

In each round every library measures all sizes once, in a process of its own; every other round takes them in the
opposite order, so that a machine that grows warmer or busier favours none. All sum float32 in place, with calls queued
back to back, as many of them as fill 0.2 s unless told otherwise. A ratio is taken within a round, before its median.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

import common
import comparison
from comparison import CompareError, Document

from vkpar.bench import sweep
from vkpar.bench.commands import WIRE_HELP, add_counts, add_devices, add_sizes, whole
from vkpar.comm.wires import NAMES
from vkpar.errors import InvalidUsageError

ROOT: Final = Path(__file__).resolve().parents[1]
PEERS: Final = {"nccl": "NCCL", "gloo": "gloo", "mpi": "MPI"}
_SETTINGS: Final = ("algorithm", "transport", "wire")  # of a variant, beside environment variables
_LIMIT_S: Final = 900.0  # of one library's round
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"


# ---- what is compared ----


@dataclass(frozen=True)
class Variant:
    """One way to run vkpar: ``settings`` are options of its benchmark."""

    name: str
    settings: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Library:
    """What is run in each round."""

    name: str
    command: list[str]
    environment: dict[str, str]
    is_peer: bool = False


def parse_pairs(text: str) -> dict[str, str]:
    """Return the ``NAME=VALUE`` pairs that ``text`` joins by commas; a comma that no name follows is the value's.

    Raises:
        InvalidUsageError: something else.
    """
    pairs = {}
    for part in re.split(rf",(?={_NAME}=)", text) if text else []:
        name, equals, value = part.partition("=")
        if not equals or not re.fullmatch(_NAME, name):
            raise InvalidUsageError(f"{part!r}: expected NAME=VALUE")
        pairs[name] = value
    return pairs


def parse_variant(text: str) -> Variant:
    """Return the variant that ``name:NAME=VALUE,...`` describes.

    Raises:
        InvalidUsageError: no name, or one of a pair that is neither a variable's nor a setting's.
    """
    name, _, rest = text.partition(":")
    if not name or "=" in name:
        raise InvalidUsageError(f"{text!r} is no variant: expected NAME:VARIABLE=VALUE,...")
    pairs = parse_pairs(rest)
    unknown = [key for key in pairs if key != key.upper() and key not in _SETTINGS]
    if unknown:
        raise InvalidUsageError(f"unknown setting {unknown[0]!r}; there are {', '.join(_SETTINGS)}, and VARIABLES")
    settings = {key: value for key, value in pairs.items() if key in _SETTINGS}
    if settings.get("wire", NAMES[0]) not in NAMES:
        raise InvalidUsageError(f"unknown wire {settings['wire']!r}; there are {', '.join(NAMES)}")
    return Variant(name, settings, {key: value for key, value in pairs.items() if key not in _SETTINGS})


@dataclass(frozen=True)
class Options:
    """What to compare, see the command line's help."""

    peer: str
    sweep: sweep.Options
    variants: tuple[Variant, ...] = (Variant("vkpar"),)
    rounds: int = 5
    environment: dict[str, str] = field(default_factory=dict)
    p2p: bool = False
    commit: str | None = None

    def __post_init__(self) -> None:
        names = [variant.name for variant in self.variants]
        twice = [name for name in (*names, PEERS[self.peer]) if (*names, PEERS[self.peer]).count(name) > 1]
        if twice:
            raise InvalidUsageError(f"two libraries are named {twice[0]!r}")
        if self.p2p and self.peer != "nccl":
            raise InvalidUsageError("--p2p is for --peer nccl")
        self.sweep.sizes()  # refuses wrong ones

    def vkpar(self, variant: Variant) -> Library:
        """Return how a variant is run."""
        settings = ({} if self.sweep.wire is None else {"wire": self.sweep.wire}) | variant.settings
        devices = [] if self.sweep.devices is None else ["--devices", self.sweep.devices]
        flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
        command = [sys.executable, "-m", "vkpar", "bench", "all_reduce", "--in-place", *devices, *flags]
        return Library(variant.name, [*command, *self._shared()], self.environment | variant.environment)

    def other(self, nranks: int) -> Library:
        """Return how the peer is run."""
        script = str(ROOT / "tools" / "peers" / f"{self.peer}.py")
        flags = ["--nranks", str(nranks), *(["--p2p"] if self.p2p else [])]
        return Library(
            PEERS[self.peer], [sys.executable, script, *flags, *self._shared()], self.environment, is_peer=True
        )

    def _shared(self) -> list[str]:
        given, iters = self.sweep, "auto" if self.sweep.iters is None else str(self.sweep.iters)
        sizes = ",".join(map(str, given.sizes()))
        return ["--sizes", sizes, "-n", iters, "-w", str(given.warmup_iters), "-c", str(given.check), "--json"]


# ---- running ----


def compare(options: Options, file: Path | None) -> Document:
    """Run all rounds and return the results, which ``file`` holds after each round."""
    results = _new(options)
    first = [options.vkpar(variant) for variant in options.variants]
    libraries = list(first)
    for number in range(options.rounds):
        order = list(libraries) if number % 2 == 0 else libraries[::-1]
        rows: dict[str, Any] = {}
        while order:
            library = order.pop(0)
            print(f"round {number + 1} of {options.rounds}: {library.name}", file=sys.stderr, flush=True)
            found = run(library)
            rows[library.name] = _rows(found)
            results["libraries"].setdefault(library.name, _described(library, found))
            if len(libraries) == len(first):  # vkpar says how many ranks there are
                libraries.append(options.other(found["nranks"]))
                order = libraries[1:]
        results["rounds"].append(rows)
        if file is not None:
            write(results, file)
    return results


def run(library: Library) -> Document:
    """Run one library for a round and return its JSON document.

    Raises:
        CompareError: it failed; wrong elements are no failure but a result.
    """
    environment = os.environ | {"PYTHONPATH": _with_root()} | library.environment
    with subprocess.Popen(
        library.command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that its processes can be ended with it
    ) as process:
        try:
            out, err = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise CompareError(f"{library.name} took more than {_LIMIT_S:g} s") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    said = (err.strip().splitlines() or ["nothing on its standard error"])[-1]
    if process.returncode not in (0, common.WRONG) or "{" not in out:
        raise CompareError(f"{library.name} ended with status {process.returncode}: {said}")
    try:
        # NCCL may print its version first.
        found: Document = json.JSONDecoder().raw_decode(out, out.index("{"))[0]
    except ValueError as error:
        raise CompareError(f"{library.name} printed no JSON document: {error}") from error
    return found


def _with_root() -> str:
    before = os.environ.get("PYTHONPATH")
    return str(ROOT) if not before else f"{ROOT}{os.pathsep}{before}"


def _new(options: Options) -> Document:
    given = options.sweep
    return {
        "benchmark": "compare",
        "collective": given.collective,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": options.commit or _commit(),
        "host": {"cpu": common.cpu_name(), "cores": os.cpu_count(), "load": os.getloadavg()[0]},
        "peer": PEERS[options.peer],
        "options": {"iters": given.iters, "warmup_iters": given.warmup_iters, "check": given.check},
        "libraries": {},
        "rounds": [],
    }


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _described(library: Library, found: Document) -> Document:
    """Return what stays the same from round to round."""
    kept = ("nranks", "versions", "ranks", "links", "explanation", "check")
    shown = {name: value for name, value in sorted(os.environ.items()) if name.startswith("VKPAR_")}
    environment = found["environment"] if library.is_peer else shown | library.environment
    settings = {name: found["options"][name] for name in _SETTINGS}
    own = {} if library.is_peer else {"settings": settings}
    command = [word.removeprefix(f"{ROOT}{os.sep}") for word in library.command[1:]]
    return {"command": command, "environment": environment, **own} | {name: found[name] for name in kept}


def _rows(found: Document) -> list[Document]:
    return [
        {"size": row["size"], **row["in_place"], "algorithm": row["algorithm"], "iters": iters}
        for row, iters in zip(found["rows"], found["iters"], strict=True)
    ]


def write(results: Document, file: Path) -> None:
    """Write the results, with their summary, as JSON."""
    wrong = comparison.wrong_elements(results)
    whole_document = results | {
        "summary": [asdict(line) for line in comparison.summarise(results)],
        "wrong": wrong,
        "ok": not wrong,
    }
    beside = file.with_name(f"{file.name}.part")  # an interrupted run leaves the rounds before
    beside.write_text(json.dumps(whole_document, indent=2) + "\n")
    beside.replace(file)


# ---- the command line ----


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--peer", choices=list(PEERS), help="the other library; the packages are its own")
    source.add_argument("--from", dest="source", type=Path, metavar="FILE", help="show results instead of measuring")
    add_devices(parser, "vkpar's rig; the peer gets as many ranks")
    parser.add_argument("--rounds", type=whole(1), default=5, metavar="N", help="default: 5")
    add_sizes(parser)
    add_counts(parser, SimpleNamespace(iters="auto", warmup_iters=5), auto=True)
    parser.add_argument("--wire", default="f16", choices=NAMES, metavar="WIRE", help=WIRE_HELP)
    parser.add_argument("--link", choices=("native", "bridged"), help="VKPAR_LINK for all variants")
    parser.add_argument(
        "--variant",
        action="append",
        metavar="NAME:VAR=VALUE,...",
        help=f"a way to run vkpar, with variables of its environment and {', '.join(_SETTINGS)}; may be repeated",
    )
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for all; may be repeated")
    parser.add_argument("--p2p", action="store_true", help="leave NCCL's peer access on")
    parser.add_argument("--commit", help="what the header says where git does not know")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results, after each round")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them; needs matplotlib")
    return parser


def _options(found: argparse.Namespace) -> Options:
    named = {item.name: getattr(found, item.name) for item in fields(sweep.Options) if hasattr(found, item.name)}
    environment = {} if found.link is None else {"VKPAR_LINK": found.link}
    for text in found.env:
        environment |= parse_pairs(text)
    variants = tuple(parse_variant(text) for text in found.variant or ["vkpar"])
    return Options(found.peer, sweep.Options(**named), variants, found.rounds, environment, found.p2p, found.commit)


def _main(arguments: Sequence[str] | None = None) -> int:
    found = _parser().parse_args(arguments)
    if found.plot is not None:
        common.need("matplotlib", "pip install matplotlib (or draw later: --from FILE --plot FILE.png)")
    for file in (found.json, found.plot):
        if file is not None and not file.resolve().parent.is_dir():
            raise InvalidUsageError(f"there is no folder for {file}")
    results = comparison.read(found.source) if found.source is not None else compare(_options(found), found.json)
    for line in comparison.lines(results):
        print(line)
    if found.plot is not None:
        comparison.plot(results, found.plot)
    return common.WRONG if comparison.wrong_elements(results) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, or show what was compared; return the exit status: 1 for wrong elements, 2 for an error."""
    try:
        return common.main(lambda: _main(arguments))
    except OSError as error:
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        return common.ERROR


if __name__ == "__main__":
    sys.exit(main())
