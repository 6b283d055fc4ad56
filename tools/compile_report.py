#!/usr/bin/env python3
"""Compile kernels for cards that are not here, and report what the compilers made of them.

Mesa's drivers compile for cards that a machine does not have and run nothing: RADV before Mesa 26 by itself, Intel's,
NVK, turnip and today's RADV by a library that stubs the kernel driver (tools/stubs). Of every pipeline they say how
many registers were spilled to memory, and more (VK_KHR_pipeline_executable_properties).

    tools/compile_report.py                       every family of AMD cards that the driver knows, as a table by source
    tools/compile_report.py --each                by kernel
    tools/compile_report.py --family dg2          one family; the option may be repeated
    tools/compile_report.py --chosen --family bmg what vkpar itself chooses, by public calls
    tools/compile_report.py --variant wide        one variant of each kernel instead of all
    tools/compile_report.py --kernel '^matmul'    the kernels whose names match
    tools/compile_report.py --driver icd.json     another driver; .cache/mesa26/intel_icd.json is run by its own loader
    tools/compile_report.py --json                every pipeline, for programs

The exit status is 1 where a kernel does not compile or spills registers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import cards  # noqa: E402
from cards import CARDS  # noqa: E402
from kernel_variants import VARIANTS, Module, ReportError, modules  # noqa: E402
from null_compiler import Built, Compiler  # noqa: E402

from vkpar.errors import VkparError  # noqa: E402

AMD: Final = tuple(name for name, card in CARDS.items() if card.forced)
CHOSEN: Final = "chosen"
_UNKNOWN: Final = "Unknown family"
_REFUSED: Final = 2  # the exit status of a report that cannot be made
_MOST_ENDED: Final = 40  # kernels that may end the process of one family's driver


# ---- in the process that has the driver ----


def compile_here(arguments: argparse.Namespace) -> int:
    """Build what is asked for on the card of this process; print a JSON line of each pipeline."""
    compiler = Compiler()
    _say(device=compiler.info.name, driver=f"{compiler.info.driver_name} {compiler.info.driver_info}")
    begun = not arguments.after
    for module, variant, constants in _asked(compiler.info, arguments):
        key = f"{module.name} {variant} {constants}"
        if not begun:
            begun = key == arguments.after
            continue
        lacking = compiler.lacks(module, constants)
        if lacking:
            _say(kernel=module.name, left=lacking)
            continue
        _say(begun=key, kernel=module.name, variant=variant)
        try:
            _say(**asdict(compiler.build(module, variant, constants)))
        except VkparError as error:
            _say(kernel=module.name, variant=variant, error=str(error))
    compiler.close()
    return 0


def _say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def _asked(card: Any, arguments: argparse.Namespace) -> Iterator[tuple[Module, str, tuple[int, ...]]]:
    """Yield what to build: kernels, the names of variants, and constants."""
    if CHOSEN in arguments.variant:
        import chosen_pipelines

        yield from chosen_pipelines.recorded(card, arguments.kernel, sample=arguments.sample)
        return
    for module in modules(arguments.kernel):
        by_constants = {module.values(variant): variant for variant in reversed(arguments.variant)}
        for constants, variant in reversed(by_constants.items()):
            yield module, variant, constants


# ---- what is made of it ----


@dataclass(frozen=True)
class Report:
    """What the compiler made of the kernels for one family."""

    family: str
    device: str
    driver: str
    built: tuple[Built, ...]
    left: dict[str, str]
    errors: tuple[str, ...]

    @property
    def faults(self) -> list[str]:
        """What may not be: kernels that do not compile, and registers in memory."""
        spilled = [
            f"{each.kernel} ({each.variant}): spilled {each.spills} registers" for each in self.built if each.spills
        ]
        return [*self.errors, *spilled]


def report(
    family: str,
    driver: Path,
    variants: Sequence[str] = VARIANTS,
    kernel: str = "",
    *,
    stubs: Path | None = None,
    sample: int = 1,
) -> Report | None:
    """Compile for one family, in a process that has that driver alone; None where the driver does not know it.

    Args:
        family: one of :data:`cards.CARDS`.
        driver: the file that names the driver to the loader.
        variants: some of :data:`VARIANTS`, or :data:`CHOSEN`.
        kernel: a pattern that the names of the kernels match.
        stubs: the folder of the libraries that play cards.
        sample: of what vkpar chooses, one call of so many.

    Raises:
        ReportError: the process failed.
    """
    card = CARDS[family]
    stub = cards.stub_of(card, driver, *([stubs] if stubs else []))
    arguments = [__file__, "--here", "--kernel", kernel, "--sample", str(sample)]
    arguments += [word for variant in variants for word in ("--variant", variant)]
    others = cards.beside(driver) if CHOSEN in variants else ()
    lines: list[dict[str, Any]] = []
    for older in (False, True)[: 1 + (stub is None and card.older != card.forced)]:
        after = ended = ""
        for _ in range(_MOST_ENDED):
            done = subprocess.run(
                [*cards.command(driver, stub, [*arguments, "--after", after])],
                env=cards.environment(card, driver, stub, *others, older=older),
                capture_output=True,
                text=True,
                check=False,
            )
            lines += (json.loads(line) for line in done.stdout.splitlines())
            if done.returncode == 0:
                return _parsed(family, lines)
            if done.returncode == _REFUSED or not lines or "begun" not in lines[-1]:
                break
            # The driver ended the process: once more from that kernel on, since some do so at any; then behind it.
            begun = [line["begun"] for line in lines if "begun" in line]
            if begun[-1] != ended:
                after, ended = (["", *begun])[-2], begun[-1]
                lines.pop()
                continue
            last = done.stderr.strip().splitlines()[-1:]
            lines.append({**lines[-1], "error": f"the driver ended the process: {' '.join(last) or done.returncode}"})
            after = ended
        if _UNKNOWN not in done.stderr:
            raise ReportError(f"{family}, {driver}: status {done.returncode}\n{done.stderr.strip()}")
    return None


def _parsed(family: str, lines: Sequence[dict[str, Any]]) -> Report:
    first = lines[0]
    built = tuple(Built(**{**line, "constants": tuple(line["constants"])}) for line in lines if "registers" in line)
    left = {line["kernel"]: line["left"] for line in lines if "left" in line}
    errors = tuple(f"{line['kernel']} ({line['variant']}): {line['error']}" for line in lines if "error" in line)
    return Report(family, first["device"], first["driver"], built, left, errors)


def table(reports: Sequence[Report], *, each: bool = False) -> str:
    """Return reports as one table in Markdown.

    Args:
        reports: of families.
        each: a row has one kernel, in place of all of a source.
    """
    cells: dict[str, dict[str, list[Built]]] = {}
    for found in reports:
        for built in found.built:
            row = cells.setdefault(built.kernel if each else built.source, {})
            row.setdefault(found.family, []).append(built)
    families = [found.family for found in reports]
    lines = [f"| kernel | pipelines | shared memory | {' | '.join(families)} |"]
    lines.append("| --- | ---: | ---: |" + " ---: |" * len(families))
    for name, row in cells.items():
        every = [built for members in row.values() for built in members]
        shared = max(built.shared for built in every)
        most = " | ".join(_most(row.get(family, ())) for family in families)
        lines.append(f"| {name} | {max(map(len, row.values()))} | {shared} | {most} |")
    return "\n".join(lines)


def _most(members: Sequence[Built]) -> str:
    """Return the most registers that one of some pipelines takes, and the fewest subgroups that a SIMD holds of one."""
    if not members:
        return "-"
    registers, scalars, spills, scratch = (
        max(getattr(built, name) for built in members) for name in ("registers", "scalars", "spills", "scratch")
    )
    waves = min(built.waves for built in members)
    said = f"{registers}+{scalars}, {waves}" if waves else f"{registers}"
    return said + (f", {spills} spilled" if spills else "") + (f", {scratch} B scratch" if scratch else "")


def notes(found: Report) -> list[str]:
    """Return what is to be said of a family besides the table's numbers."""
    kernels = len({built.kernel for built in found.built})
    lines = [f"{found.family}: {found.device}, {found.driver}, {len(found.built)} pipelines of {kernels} kernels"]
    if found.built:
        widths = sorted({built.width for built in found.built})
        counts = ", ".join(f"{sum(built.width == width for built in found.built)} of {width}" for width in widths)
        slowest = max(found.built, key=lambda built: built.ms)
        lines.append(
            f"  subgroups: {counts}; {sum(bool(built.spills) for built in found.built)} pipelines spill; "
            f"{max(built.shared for built in found.built)} B of shared memory at most; "
            f"{sum(built.ms for built in found.built) / 1000:.0f} s, {slowest.kernel} {slowest.ms / 1000:.2f} s of them"
        )
    why: dict[str, list[str]] = {}
    for kernel, lacking in found.left.items():
        why.setdefault(lacking, []).append(kernel)
    lines += [f"  not built, since the card has no {lacking}: {', '.join(names)}" for lacking, names in why.items()]
    return lines + [f"  FAULT: {fault}" for fault in found.faults]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", choices=CARDS)
    parser.add_argument("--variant", action="append", choices=VARIANTS)
    parser.add_argument("--chosen", action="store_const", dest="variant", const=[CHOSEN])
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="of --chosen, one call of N")
    parser.add_argument("--kernel", default="", metavar="PATTERN")
    parser.add_argument("--driver", type=Path, metavar="ICD.json")
    parser.add_argument("--stubs", type=Path, metavar="FOLDER", help="of the libraries that play cards (.cache/stubs)")
    parser.add_argument("--each", action="store_true", help="a row for each kernel, not for each source")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in the process that has the driver
    parser.add_argument("--after", default="", help=argparse.SUPPRESS)  # the pipeline that ended an earlier process
    given = parser.parse_args(_plain(arguments))
    given.variant = given.variant or list(VARIANTS)
    try:
        return compile_here(given) if given.here else _print(given)
    except (ReportError, VkparError) as error:
        print(f"error: {error}", file=sys.stderr)
        return _REFUSED


def _plain(arguments: Sequence[str] | None) -> list[str]:
    """Return the arguments with ``--variant chosen``, which processes are given, as the option for it."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    while CHOSEN in words and words[words.index(CHOSEN) - 1] == "--variant":
        at = words.index(CHOSEN)
        words[at - 1 : at + 1] = [f"--{CHOSEN}"]
    return words


def _print(given: argparse.Namespace) -> int:
    made = []
    for family in given.family or AMD:
        driver = given.driver or cards.driver_of(CARDS[family])
        found = report(family, driver, given.variant, given.kernel, stubs=given.stubs, sample=given.sample)
        if found is not None:
            made.append(found)
        elif given.family:
            raise ReportError(f"{driver} does not know {family}")
    if not made:
        raise ReportError(f"the driver knows none of {', '.join(AMD)}")
    if given.json:
        print(json.dumps([{**asdict(found), "faults": found.faults} for found in made], indent=1))
        return int(any(found.faults for found in made))
    print(table(made, each=given.each))
    print("\nregisters of an invocation (vector + scalar), then subgroups that a SIMD holds at once\n")
    print("\n".join(line for found in made for line in notes(found)))
    return int(any(found.faults for found in made))


if __name__ == "__main__":
    sys.exit(main())
