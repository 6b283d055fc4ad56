"""What the self-test of native links does in its child process, between two queues that share timelines for sure."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import require
from helpers.vulkan.queues import queues_apart

import vkpar
from vkpar.comm.rig import children, linktest
from vkpar.vulkan.queue import Queue

pytestmark = pytest.mark.device


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Two queues of one device, each in the place of a device: what one signals the other can wait for as it is."""
    require("llvmpipe")
    with queues_apart(monkeypatch):
        (device,) = vkpar.open_devices("llvmpipe")
        logical = device.logical
        second = Queue(logical.handle, logical.info, logical.compute.family, "second", logical.gate)
        monkeypatch.setattr(
            linktest, "share", lambda source, target: SimpleNamespace(handle=source.timeline.handle, close=lambda: None)
        )
        yield [
            SimpleNamespace(handle=logical.handle, compute=queue, close=lambda: None)
            for queue in (logical.compute, second)
        ]
        second.wait(second.last, 60)
        device.synchronize(60)
    second.close()
    device.close()


@pytest.mark.parametrize("hops", [2, 9])
def test_hops_are_counted_on_both_timelines(pair: list[Any], hops: int) -> None:
    for _ in range(2):
        assert linktest.hop(*pair, hops) == [hops - hops // 2, hops // 2]


def test_the_proof_is_the_one_that_is_asked_for(
    pair: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    infos = [SimpleNamespace(device_uuid=uuid, queue=device) for uuid, device in zip("ab", pair, strict=True)]
    monkeypatch.setattr(linktest.drivers, "enumerate_devices", lambda: infos)
    monkeypatch.setattr(linktest, "LogicalDevice", lambda info: info.queue)
    linktest.main(["b", "a"], 11, "17")
    assert capsys.readouterr().out.split() == [children.proof("17", [6, 5])]
