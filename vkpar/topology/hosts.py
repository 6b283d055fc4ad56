"""A device by itself: its link to the host, how fast it reads weights and multiplies, what memory it has free."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import vkpar
from vkpar import Device
from vkpar.bench.measure import rawcopy
from vkpar.parallel.cut.split import free_memory
from vkpar.parallel.rates import speed

PCI: Final = Path("/sys/bus/pci/devices")
_SIZE: Final = 128 << 20
_SIZE_CPU: Final = 8 << 20
_SIDE: Final = 4096  # of the matrices of a product
_SIDE_CPU: Final = 256
_ROUNDS: Final = 5
_GENERATIONS: Final = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # by GT/s


@dataclass(frozen=True)
class Slot:
    """A PCI Express link: its generation and width now and at most; links at rest step down."""

    generation: int
    width: int
    most_generation: int
    most_width: int

    def __str__(self) -> str:
        """Return it in the words of lspci's users: ``PCIe 4 x8``."""
        now, most = (self.generation, self.width), (self.most_generation, self.most_width)
        beside = "" if now == most or not most[1] else f" (of {most[0]} x{most[1]})"
        return f"PCIe {now[0] or '?'} x{now[1]}{beside}"


@dataclass(frozen=True)
class Host:
    """What one rank's device does by itself.

    Attributes:
        slot: its link to the host, None where the system does not tell.
        up_gbps: raw copies from the host, in GB/s of 10^9 bytes; ``down_gbps`` to it.
        weights_gbps: of float16 weights that a product of one row reads.
        tflops: of a square product of float16.
        free_bytes: for arrays.
    """

    rank: int
    name: str
    driver: str
    slot: Slot | None
    up_gbps: float
    down_gbps: float
    weights_gbps: float
    tflops: float
    free_bytes: int


def measured(devices: Sequence[Device]) -> list[Host]:
    """Measure each device alone; ranks on one device share what it reads of weights.

    Raises:
        OutOfMemoryError: no room for arrays of 128 MiB (8 MiB on a CPU).
    """
    speeds, free = speed.speeds(devices), free_memory(devices)
    made = []
    for rank, device in enumerate(devices):
        up, down = _copies(device)
        driver = f"{device.info.driver_name} {device.info.driver_info}".strip()
        slot = slot_of(device.info.pci_address)
        rates = (up, down, speeds[rank] / 1e9, _tflops(device))
        made.append(Host(rank, device.name, driver, slot, *rates, free[rank]))
    return made


def slot_of(address: str | None) -> Slot | None:
    """Return the link of the device at a PCI address, None where sysfs does not tell."""
    if address is None:
        return None

    def read(name: str) -> str:
        with suppress(OSError):
            return (PCI / address / name).read_text().strip()
        return ""

    def generation(name: str) -> int:
        found = re.match(r"[\d.]+", read(name))
        return _GENERATIONS.get(found[0], 0) if found else 0

    def width(name: str) -> int:
        found = read(name)
        return int(found) if found.isdecimal() and found != "255" else 0  # what the kernel says of no link

    now = generation("current_link_speed"), width("current_link_width")
    made = Slot(*now, generation("max_link_speed"), width("max_link_width"))
    return made if made.width else None


def _copies(device: Device) -> tuple[float, float]:
    """Return GB/s of raw copies from the host and to it."""
    size = _SIZE_CPU if device.info.is_cpu else _SIZE
    with device.empty(size, "uint8") as array, rawcopy.raw_copies(array) as copies:
        up, down = (size / least([device], call) / 1e9 for call in (copies.upload, copies.download))
    return up, down


def _tflops(device: Device) -> float:
    side = _SIDE_CPU if device.info.is_cpu else _SIDE
    a, b, out = (device.zeros((side, side), "float16") for _ in range(3))
    seconds = least([device], lambda: vkpar.matmul(a, b, transpose_b=True, out=out))
    return 2 * side**3 / seconds / 1e12


def least(devices: Sequence[Device], call: Callable[[], object]) -> float:
    """Return the least seconds of some calls, with what they put off, after one that makes what they need."""
    found = []
    for _ in range(_ROUNDS + 1):
        _synchronize(devices)
        start = time.perf_counter()
        call()
        _synchronize(devices)
        found.append(time.perf_counter() - start)
    return min(found[1:])


def _synchronize(devices: Sequence[Device]) -> None:
    for device in devices:
        device.synchronize()
