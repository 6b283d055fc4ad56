"""Sums of products by quantised weights in graphs: the product's kernel fills the slot, and not a bit changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from conftest import FULL, Rigs
from helpers.graph.flagging import check_sent
from helpers.graph.fusing import WIRES, bits, force_gpu
from helpers.ops.quantizing import NAMES, blocks_of
from helpers.ops.reducing import fresh_devices
from helpers.vulkan.planning import forget

import vkpar
from vkpar.ops.matmul import dots
from vkpar.ops.quantized.weights import KINDS

pytestmark = [pytest.mark.rig, pytest.mark.sampled(6)]
Devices = Callable[[str], list[vkpar.Device]]


@pytest.fixture(autouse=True, params=["floats", "dots"])
def gpu_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU drivers run the kernels of GPUs, of which alone anything is fused."""
    force_gpu(monkeypatch.setattr)
    large = 1024 if request.param == "dots" else 1 << 30
    monkeypatch.setattr(dots, "usable", lambda device: device.limits.max_workgroup_invocations >= large)


@pytest.fixture(scope="module")
def own(rigs: Rigs) -> Iterator[Devices]:
    """Give devices by letters that no other module uses: their plans are those of GPUs."""
    opened: dict[str, list[vkpar.Device]] = {}

    def make(letters: str) -> list[vkpar.Device]:
        if letters not in opened:
            opened[letters] = fresh_devices(rigs, letters)
        for device in opened[letters]:
            forget(device)
        return opened[letters]

    yield make
    for devices in opened.values():
        for device in devices:
            device.close()


class Products:
    """A row by quantised weights on each rank, and the sum of what they make."""

    def __init__(self, comm: vkpar.Communicator, kind: str, m: int, n: int, *, biased: bool = False) -> None:
        chance, found = np.random.default_rng([m, n]), KINDS[kind]
        k = 3 * found.block
        self.comm = comm
        self.x, self.q, self.y, self.bias = [], [], [], []  # type: ignore[var-annotated]
        for device in comm.devices:
            self.q.append(vkpar.quantized(device, blocks_of(chance, kind, n, k), (n, k), kind))
            self.x.append(device.array(chance.standard_normal((m, k)).astype(np.float32)))
            self.y.append(device.empty((m, n)))
            self.bias.append(device.array(chance.standard_normal(n).astype(np.float32)) if biased else None)

    def products(self) -> list[vkpar.Array]:
        """Multiply."""
        for x, q, y, bias in zip(self.x, self.q, self.y, self.bias, strict=True):
            vkpar.matmul(x, q, transpose_b=True, out=y, bias=bias)
        return list(self.y)

    def work(self) -> list[vkpar.Array]:
        """Multiply and add up."""
        self.comm.all_reduce(self.products())
        return list(self.y)

    def check(self, fused: int) -> None:
        """Compare eager, captured, and captured and fused work."""
        wanted = bits(self.work())
        for fuse in (False, True):
            with vkpar.capture(self.comm.devices, comm=self.comm, fuse=fuse) as graph:
                made = self.work()
            assert graph.stats().fused == (fused if fuse else 0)
            for _ in range(2):
                for y in self.y:
                    y.write(np.full(y.shape, np.nan, np.float32))
                graph.launch().wait()
                assert bits(made) == wanted, f"fuse={fuse}"
            graph.close()


@pytest.mark.sampled(257)
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("letters", ["LL", "LLL", "SS"] if FULL else ["LL"])
def test_products_fill_slots(own: Devices, letters: str, wire: str, kind: str) -> None:
    with vkpar.Communicator(own(letters), wire=wire, algorithm="direct") as comm:
        for n in (5, 257, 1000):
            Products(comm, kind, 1, n).check(comm.nranks)
        Products(comm, kind, 1, 300, biased=True).check(comm.nranks)


@pytest.mark.sampled(65)
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("letters", ["LL", "SS"])
def test_products_raise_flags(own: Devices, monkeypatch: pytest.MonkeyPatch, letters: str, kind: str) -> None:
    with vkpar.Communicator(own(letters), algorithm="direct") as comm:
        check_sent(monkeypatch, comm, Products(comm, kind, 1, 600).products)


def test_several_rows_are_sent_by_the_step(own: Devices) -> None:
    with vkpar.Communicator(own("LL"), wire="f16", algorithm="direct") as comm:
        Products(comm, "q8_0", 3, 40).check(0)
