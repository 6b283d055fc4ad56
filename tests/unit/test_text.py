"""Numbers and tables as text, and the objects that print themselves as tables."""

from __future__ import annotations

import io

import pytest
from helpers.vulkan.infos import fake_info

import vkpar
from vkpar import text
from vkpar.comm.plan.choose import MEASURED, Trial, Tuning
from vkpar.comm.plan.shares import ROLES, Costs
from vkpar.vulkan.memory.accounting import DeviceMemory, HeapMemory


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (3 << 19, "1.5 MiB"),
        (1 << 30, "1 GiB"),
        (140 << 30, "140 GiB"),
        (3 << 40, "3 TiB"),
    ],
)
def test_units(nbytes: int, said: str) -> None:
    assert text.units(nbytes) == said


def test_columns_are_aligned_and_end_without_blanks() -> None:
    lines = text.columns([("a", "name", "b"), ("10", "x", ""), ("2", "longer", "30")], left=(1,))
    assert lines == [" a  name     b", "10  x", " 2  longer  30"]


def test_memory_prints_as_a_table() -> None:
    heaps = (
        HeapMemory(0, True, 140 << 30, 3 << 20, 61 << 20, 0, 138 << 30, 2 << 30),
        HeapMemory(1, False, 512 << 30, 0, 0, 1 << 20, None, None),
    )
    memory = DeviceMemory(heaps, 2 << 20, 1 << 20, 1 << 20, 3 << 10, 7, 1 << 30, 3, 1, 0, 61 << 20, 0.25)
    lines = str(memory).splitlines()
    assert lines[0].split() == ["heap", "kind", "total", "used", "cached", "imported", "budget", "process"]
    assert lines[1].split() == [
        *["0", "device-local", "140", "GiB", "3", "MiB", "61", "MiB", "0", "B", "138", "GiB", "2", "GiB"]
    ]
    assert lines[2].split()[-4:] == ["1", "MiB", "-", "-"]
    assert "arrays 2 MiB of 1 GiB that VKPAR_MAX_MEMORY allows" in lines
    assert "staging 1 MiB, slots 1 MiB, bounce buffers 3 KiB" in lines
    assert "largest free piece 61 MiB, fragmentation 25%" in lines
    assert max(map(len, lines)) <= 80


def test_plans_are_a_tuple_that_prints_as_a_table() -> None:
    plans = vkpar.plan_memory([fake_info(0), fake_info(1)], [((1 << 20,), "float32"), ((1 << 36,), "float32", 1)])
    assert isinstance(plans, tuple)
    assert [plan.fits for plan in plans] == [True, False]
    titles, first, second = str(plans).splitlines()
    assert titles.split() == ["rank", "arrays", "bytes", "taken", "left", "fits", "device"]
    assert first.split()[:4] == ["0", "1", "4", "MiB"]
    assert "  yes  Fancy" in first
    assert "   NO  Fancy" in second
    assert second.split()[1:4] == ["2", "256", "GiB"]


def test_a_tuning_prints_as_tables() -> None:
    assert str(Tuning()) == "built-in thresholds: nothing was measured on this rig"
    trials = (
        Trial(4096, "naive", 0, 40e-6),
        Trial(4096, "two_shot", 0, 30e-6, chosen=True),
        Trial(4096, "two_shot", 1 << 19, 35e-6),
    )
    costs = (Costs(**dict.fromkeys(ROLES, 1e-9), wire="f16"),)
    lines = str(Tuning(costs=costs, origin=MEASURED, trials=trials)).splitlines()
    assert lines[0] == "measured on this rig"
    assert lines[2].split() == ["f16", "two_shot", "naive", "segment", "float32", "vs", "naive"]
    assert lines[3].split() == ["4", "KiB", "*", "30", "40", "by", "size", "8", "KiB", "1.3x"]
    assert lines[5].split() == ["GB/s", "rank", *ROLES]
    assert lines[6].split() == ["f16", "0", *["1"] * len(ROLES)]
    assert all(line == line.rstrip() for line in lines)


def test_lines_lose_their_blanks_and_keep_their_colours() -> None:
    stream = io.StringIO()
    trimmed = text.Trimmed(stream)
    trimmed.write("a  \n\x1b[1mb   \x1b[0m  \n  c \nd \x1b[2m  \x1b[0m\x1b[1m \x1b[0m \n ")
    assert stream.getvalue() == "a\n\x1b[1mb\x1b[0m\n  c\nd\x1b[2m\x1b[0m\x1b[1m\x1b[0m\n "
    assert trimmed.isatty() is False
