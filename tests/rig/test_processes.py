"""Communicators over several processes, under mpiexec: see ``helpers/process/spanning.py``.

``VKPAR_TEST_MPICH`` and ``VKPAR_TEST_OPENMPI`` name where each is installed; tools/test sets them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import conftest
import pytest
from helpers.process.children import child_environment

PROGRAM = Path(__file__).resolve().parents[1] / "helpers" / "process" / "spanning.py"
MPICH, OPENMPI = "mpich", "openmpi"
_LIBRARIES = {MPICH: "lib/libmpi.so.12", OPENMPI: "lib/libmpi.so.40"}
_SECONDS = 600 if conftest.FULL else 150


def command(mpi: str, number: int) -> tuple[list[str], dict[str, str]]:
    """Return how that MPI starts so many processes, and their environment."""
    pytest.importorskip("mpi4py")
    folder = os.environ.get(f"VKPAR_TEST_{mpi.upper()}")
    if not folder:
        pytest.skip(f"VKPAR_TEST_{mpi.upper()} names no folder of {mpi}")
    environment = child_environment(
        MPI4PY_LIBMPI=str(Path(folder) / _LIBRARIES[mpi]),
        VKPAR_TUNING="off",
        PYTHONPATH=os.pathsep.join([*map(str, PROGRAM.parents[2:4]), os.environ.get("PYTHONPATH", "")]),
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
    )
    return [str(Path(folder) / "bin" / "mpiexec"), "-n", str(number)], environment


def run(mpi: str, scenarios: str, *letters: str, changes: Mapping[str, str] | None = None) -> None:
    """Run scenarios on processes with these devices; they must end well."""
    for letter in "".join(letters):
        conftest.require(conftest.KNOWN["LS".index(letter)])
    start, environment = command(mpi, len(letters))
    arguments = [*start, sys.executable, str(PROGRAM), scenarios, *letters]
    done = _started(arguments, {**environment, **(changes or {})})
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}"
    assert done.stdout.count("done") == len(letters)


def _started(arguments: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, env=dict(environment), capture_output=True, text=True, timeout=_SECONDS, check=False
    )


_OPENING = ("opens_no_rig", "tests_nothing")  # the others are told what was raised


def fail(mpi: str, scenario: str, folder: Path) -> list[float]:
    """Run a failure of the last of three processes; return after how many seconds each of those that were told was.

    All must be gone in the end, and mpiexec say that something was wrong.
    """
    conftest.require("llvmpipe")
    start, environment = command(mpi, 3)
    mark = f"{scenario}-{os.getpid()}"
    arguments = [*start, sys.executable, str(PROGRAM), scenario, "L", "L", "L"]
    lines = folder / "told"
    lines.touch()
    done = _started(arguments, {**environment, "VKPAR_TEST_MARK": mark, "VKPAR_TEST_TOLD": str(lines)})
    assert done.returncode != 0, done.stdout
    deadline = time.monotonic() + 5  # mpiexec kills them, and does not wait until they are gone
    while _alive(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(mark), done.stdout
    told = re.findall(r"told \d after ([\d.]+) s, closed after ([\d.]+) s: (.*)", lines.read_text())
    for _, _, words in told:
        assert ("OUT_OF_HOST_MEMORY" in words) == (scenario in _OPENING), words
        assert re.search(r"(process|rank) 2|too late", words), words
        assert re.search(r"call \d+, all_|all_reduce #\d+|too late", words), words
    return [float(closed) for _, closed, _ in told]


def _alive(mark: str) -> list[str]:
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            text = environ.read_bytes()
        except OSError:  # it has ended, or is somebody else's
            continue
        if f"VKPAR_TEST_MARK={mark}".encode() in text:
            found.append(environ.parent.name)
    return found


_RIGS = ["S L LL S"]
_MORE = ["L S", "LS L S", "S L", "L L", "SS LL", "SL LS", "S S L", "L LS L L", "S SS LLL S"]


@pytest.mark.parametrize("letters", [*_RIGS, *_MORE] if conftest.FULL else _RIGS)
def test_collectives_give_the_bits_of_one_process(letters: str) -> None:
    run(MPICH, "collectives" if letters == "L S" else "collectives,pairs", *letters.split())


def test_open_mpi_does_as_well() -> None:
    run(OPENMPI, "pairs,graphs,calls,streams", "L", "L")


def test_graphs_and_calls_that_differ_and_communicators_of_split() -> None:
    run(
        MPICH,
        "graphs,calls,refused,streams",
        "LS",
        "L",
        "S",
        changes={"VKPAR_VALIDATION": os.environ["VKPAR_VALIDATION"]},
    )


_LEVELS = [("single", "unthreaded L")]
_MORE_LEVELS = [("serialized", "pairs,streams L L")]


@pytest.mark.parametrize(("level", "case"), [*_LEVELS, *_MORE_LEVELS] if conftest.FULL else _LEVELS)
def test_an_mpi_without_threads_is_refused_and_one_call_at_a_time_is_enough(level: str, case: str) -> None:
    scenarios, *letters = case.split()
    run(MPICH, scenarios, *letters, changes={"MPI4PY_RC_THREAD_LEVEL": level})


def test_sums_in_graphs_are_fused() -> None:
    run(MPICH, "fused", *(["L", "LL"] if conftest.FULL else ["L", "L"]))


_FAILURES = [(MPICH, "opens_no_rig")]
_MORE_FAILURES = [
    (OPENMPI, "hangs"),
    (MPICH, "stalls"),
    (MPICH, "tests_nothing"),
    (MPICH, "leaves"),
    (MPICH, "stops"),
    (OPENMPI, "stops"),
    (OPENMPI, "opens_no_rig"),
]


@pytest.mark.parametrize(("mpi", "scenario"), [*_FAILURES, *_MORE_FAILURES] if conftest.FULL else _FAILURES)
def test_a_process_that_does_not_go_on_is_told_to_all_others(mpi: str, scenario: str, tmp_path: Path) -> None:
    told = fail(mpi, scenario, tmp_path)
    assert len(told) == 2
    assert max(told) < 3.0 + 5.0, "the timeout, and what a loaded machine takes"


def test_what_one_process_raises_after_all_have_agreed_fails_them_all(tmp_path: Path) -> None:
    assert len(fail(MPICH, "refuses_late", tmp_path)) == 3


def test_what_comes_after_a_failure_is_written_to_no_array(tmp_path: Path) -> None:
    conftest.require("llvmpipe")
    start, environment = command(MPICH, 2)
    told = tmp_path / "told"
    done = _started(
        [*start, sys.executable, str(PROGRAM), "comes_late", "L", "L"], {**environment, "VKPAR_TEST_TOLD": str(told)}
    )
    assert told.exists(), done.stderr
    assert "it has what was written" in told.read_text()


def test_a_process_that_is_killed_ends_all(tmp_path: Path) -> None:
    fail(MPICH, "dies", tmp_path)  # mpiexec may end the others before they are told


def test_mpi_gives_the_same_on_the_same_data() -> None:
    run(MPICH, "against_mpi", "L", "S")


@pytest.mark.skipif(not conftest.FULL, reason="takes minutes: VKPAR_TEST_FULL")
def test_ten_thousand_reductions() -> None:
    run(MPICH, "soak", "L", "S", "L")


@pytest.mark.skipif(not conftest.FULL, reason="takes ten seconds twice: VKPAR_TEST_FULL")
def test_a_network_is_trained_to_the_same_bits_over_two_processes() -> None:
    conftest.require("llvmpipe")
    example = str(PROGRAM.parents[3] / "examples" / "train_digits.py")
    start, environment = command(MPICH, 2)
    environment["LP_NUM_THREADS"] = "0"
    several = _started([*start, sys.executable, example, "--devices", "llvmpipe", "--mpi"], environment)
    alone = _started([sys.executable, example, "--devices", "llvmpipe*2"], environment)
    bits = [re.findall(r"weights (\w{8})", done.stdout) for done in (several, alone)]
    assert bits[0] == 2 * bits[1], (several.stderr, alone.stderr)


_SPLITS = ["tensor:1:1,layer:1:1 L L", "row:1:3 L L"]
_MORE_SPLITS = [
    "row:0:1:2,row:1:0:1 LS S",
    "row:1:1:1 S S L",
    "tensor:1:1:0,layer:1:0:1,single:0:0:1,tensor:memory LS S",
    "auto:speed,tensor:even S L",
    "layer:even L S",
]


@pytest.mark.parametrize("case", [*_SPLITS, *_MORE_SPLITS] if conftest.FULL else _SPLITS)
def test_models_give_the_tokens_of_one_process(case: str) -> None:
    splits, *letters = case.split()
    for letter in "".join(letters):
        conftest.require(conftest.KNOWN["LS".index(letter)])
    start, environment = command(MPICH, len(letters))
    program = str(PROGRAM.parent / "modelling.py")
    done = _started([*start, sys.executable, program, splits, *letters], environment)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}"
    assert done.stdout.count("done") == len(letters)


def _ran(folder: Path, length: str, *letters: str) -> list[dict[str, Any]]:
    """Run the commands of ``helpers/process/commands.py``; return what each process printed."""
    for letter in letters:
        conftest.require(conftest.KNOWN["LS".index(letter)])
    start, environment = command(MPICH, len(letters))
    program = str(PROGRAM.parent / "commands.py")
    done = _started([*start, sys.executable, program, str(folder), length, *letters], environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(len(letters))]


def _well(found: list[dict[str, Any]], name: str) -> Any:
    """Return what the first process printed of a command that ended well everywhere; the others printed nothing."""
    assert [each[name]["status"] for each in found] == [0] * len(found), found[0][name]
    assert [each[name][stream] for each in found[1:] for stream in ("out", "err")] == [""] * 2 * (len(found) - 1)
    return found[0][name]["out"]


def _ended(found: list[dict[str, Any]], name: str) -> str:
    """Return the one message of a command that all ended by an error."""
    assert [each[name]["status"] for each in found] == [2] * len(found), found
    assert [each[name][stream] for each in found[1:] for stream in ("out", "err")] == [""] * 2 * (len(found) - 1)
    said = str(found[0][name]["err"])
    assert said.count("vkpar: error: ") == 1, said
    return said


def test_the_first_process_prints_and_all_end_alike(tmp_path: Path) -> None:
    found = _ran(tmp_path, "short", "L", "S")
    told = json.loads(_well(found, "bounded"))
    assert (told["wrong"], told["nranks"], [rank["rank"] for rank in told["ranks"]]) == (0, 2, [0, 1])
    assert told["check"].startswith("bound: ")
    assert [(link["kind"], link["pairs"]) for link in told["links"]] == [("mpi", [[0, 1], [1, 0]])]
    assert "root is a rank from 0 to 1, not 7" in _ended(found, "no such algorithm")
    assert "bench matmul measures one process" in _ended(found, "one process")
    assert "process 1 was given other options than process 0" in _ended(found, "unlike")
    assert "unrecognized arguments: --nonsense" in _ended(found, "no such option")
    assert [each["wrong"]["status"] for each in found] == [1, 1]
    told = json.loads(found[0]["wrong"]["out"])
    # In the last process one element of each result is wrong, out of place and in place.
    assert told["wrong"] == 2


@pytest.mark.skipif(not conftest.FULL, reason="takes a minute or two: VKPAR_TEST_FULL")
def test_every_collective_and_the_whole_doctor(tmp_path: Path) -> None:
    found = _ran(tmp_path, "long", "L", "S")
    assert "# Wrong elements : 0 OK" in _well(found, "all")
    for name in ("pairs", "rooted"):
        (row,) = [line.split() for line in _well(found, name).splitlines() if not line.startswith("#")]
        assert row[0] == "4012", row
    doctor = _well(found, "doctor")
    for name in ("processes", "moves over MPI", "sums over MPI", "captured over MPI"):
        assert f"  ok      {name} " in doctor, doctor
    assert "processes with CPU drivers share processors on" in " ".join(doctor.split())
    assert ", 0 failed, " in doctor
