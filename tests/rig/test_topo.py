"""``vkpar topo``: roads, host links and plans of a rig of two drivers, as tables, JSON and a picture."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest
from conftest import has

import vkpar
from vkpar import env
from vkpar.cli import main as cli
from vkpar.cli import topo
from vkpar.topology import fits, hosts, plot, roads
from vkpar.topology.fits import Fit
from vkpar.topology.hosts import Host, Slot
from vkpar.topology.roads import Road

pytestmark = pytest.mark.rig


@pytest.fixture
def two() -> str:
    if not (has("llvmpipe") and has("swiftshader")):
        pytest.skip("needs both CPU drivers")
    return "llvmpipe&swiftshader"


def test_a_rig_of_two_drivers(
    two: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(roads, "SIZE_CPU", 1 << 20)
    picture = tmp_path / "rig.png"
    assert cli.main(["topo", "--devices", two, "--json", "--plot", str(picture)]) == 0
    made = json.loads(capsys.readouterr().out)
    assert ["llvmpipe" in made["hosts"][0]["name"], "SwiftShader" in made["hosts"][1]["name"]] == [True, True]
    assert [(road["src"], road["dst"]) for road in made["roads"]] == [(0, 1), (1, 0)]
    assert {road["kind"] for road in made["roads"]} == {"bridged"}
    rates = [road[name] for road in made["roads"] for name in ("latency_us", "gbps", "both_gbps")]
    rates += [host[f"{name}_gbps"] for host in made["hosts"] for name in ("up", "down", "weights")]
    assert min(rates) > 0
    assert {name: round(sum(parts), 9) for name, parts in made["shares"].items()} == {"speed": 1, "memory": 1}
    assert [(fit["model"], fit["weights"]) for fit in made["fits"]] == [
        (model, weights) for model in ("8B", "32B", "70B") for weights in ("q4_k", "float16")
    ]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_the_host_copies_is_mapped(two: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roads, "SIZE_CPU", 1 << 16)
    with env.override(transport="mapped"):
        devices = vkpar.open_devices(two)
        found = list(roads.measured(devices))
    for device in devices:
        device.close()
    assert {road.kind for road in found} == {"mapped"}


def test_what_goes_over_a_road_arrives(two: str) -> None:
    """The calls that are timed move what they say: a word to and fro, and each rank's array to the other."""
    devices = vkpar.open_devices(two)
    with vkpar.Communicator(devices) as comm:
        sent = [device.array([rank + 1.0] * 8) for rank, device in enumerate(devices)]
        got = [device.zeros(8) for device in devices]
        assert roads._rate(comm, [(sent[0], got[1]), (sent[1], got[0])]) > 0
        assert [array.numpy().tolist() for array in got] == [[2.0] * 8, [1.0] * 8]
    for device in devices:
        device.close()


# ---- the slot of a card, as sysfs tells ----


@pytest.mark.parametrize(
    ("speed", "width", "shown"),
    [
        ("16.0 GT/s PCIe", "8", "PCIe 4 x8 (of 4 x16)"),
        ("16.0 GT/s PCIe", "16", "PCIe 4 x16"),
        ("2.5 GT/s PCIe", "16", "PCIe 1 x16 (of 4 x16)"),
        ("Unknown", "4", "PCIe ? x4 (of 4 x16)"),
        ("Unknown", "0", ""),
        ("32.0 GT/s PCIe", "255", ""),
        ("", "", ""),
    ],
)
def test_a_slot(speed: str, width: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "PCI", tmp_path)
    folder = tmp_path / "0000:01:00.0"
    folder.mkdir()
    files = {"current_link_speed": speed, "current_link_width": width, "max_link_speed": "16.0 GT/s PCIe"}
    for name, content in {**files, "max_link_width": "16"}.items():
        if content:
            (folder / name).write_text(f"{content}\n")
    assert str(hosts.slot_of("0000:01:00.0") or "") == shown
    assert hosts.slot_of(None) is None
    assert hosts.slot_of("0000:02:00.0") is None


# ---- what is printed ----


def _survey(nranks: int) -> topo.Survey:
    slot = Slot(4, 8, 4, 16)
    card = ("NVIDIA GeForce RTX 5090", "NVIDIA 580.95.05", slot, 12.5, 11, 1500, 210, 30 << 30)
    found = [Host(rank, *card) for rank in range(nranks)]
    pairs = permutations(range(nranks), 2)
    links = [Road(a, b, "native" if b else "bridged", "NVIDIA driver", 12.345, 50.123, 33.3) for a, b in pairs]
    shares = {name: [1 / nranks] * nranks for name in ("speed", "memory")}
    reason = "layer: tensor would take 5.1 ms a token (64 sums of 32 us); layer 3.9 ms a token"
    plans = [Fit("70B", "q4_k", "layer", True, 31.4, 42 << 30, reason)]
    return topo.Survey(f"{nranks} ranks.", found, links, shares, plans)


@pytest.mark.parametrize("nranks", [1, 2, 8])
@pytest.mark.parametrize("width", [80, 160])
def test_tables_fit_the_terminal(
    width: int, nranks: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    topo._show(_survey(nranks))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    assert shown.count("NVIDIA GeForce RTX 5090, NVIDIA 580.95.05, PCIe 4 x8 (of 4 x16)") == nranks
    assert shown.count("12.3") == nranks * (nranks - 1)
    assert shown.count("50.1") == nranks * (nranks - 1)
    assert ("latency in us" in shown) == (nranks > 1)
    assert "210,000" in shown


def test_a_picture_of_many_ranks(tmp_path: Path) -> None:
    for nranks in (1, 8):
        file = tmp_path / f"{nranks}.png"
        plot.draw(_survey(nranks).as_dict(), str(file))
        assert file.stat().st_size > 10_000


def test_a_picture_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(topo.frame, "open_devices", lambda *given: pytest.fail("it opens devices"))
    assert cli.main(["topo", "--plot", str(tmp_path / "rig.txt")]) == 2
    assert "suffix" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("single: rank 0 would need 2 GiB and has 1; layer: rank 1 would need 3 GiB and has 1", "no room"),
        ("single: rank 0 would need 2 GiB and has 1; tensor: 40 heads", "no room; tensor: 40 heads"),
        ("tensor: 40 heads cannot be cut", "tensor: 40 heads cannot be cut"),
    ],
)
def test_why_there_is_no_mode(reason: str, shown: str) -> None:
    assert Fit("8B", "q4_k", "", False, None, 0, f"no mode is possible: {reason}").shown == shown


def test_shapes_are_of_the_sizes_that_they_are_called() -> None:
    for model, (layers, width, hidden, heads, kv_heads, head_dim, vocabulary) in fits.SHAPES.items():
        attention = width * head_dim * (2 * heads + 2 * kv_heads)
        weights = layers * (attention + 3 * width * hidden) + 2 * width * vocabulary
        assert abs(weights / 1e9 / float(model[:-1]) - 1) < 0.05
