"""Native links: a file descriptor that goes from one driver object to another, and is never leaked."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from vkpar import VulkanError
from vkpar.comm.rig import links


class FakeTimeline:
    """A timeline that exports one end of a pipe and takes it, or refuses."""

    refuses = False

    def __init__(self, device: Any) -> None:
        self.closed = False
        self.exported, self.writer = -1, -1
        made.append(self)

    def export_fd(self) -> int:
        self.exported, self.writer = os.pipe()
        return self.exported

    def import_fd(self, fd: int) -> None:
        if self.refuses:
            raise VulkanError("VK_ERROR_INVALID_EXTERNAL_HANDLE", "vkImportSemaphoreFdKHR")

    def close(self) -> None:
        self.closed = True


made: list[FakeTimeline] = []


@pytest.mark.parametrize("refuses", [False, True])
def test_a_descriptor_belongs_to_the_driver_that_took_it(refuses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "TimelineSemaphore", FakeTimeline)
    monkeypatch.setattr(FakeTimeline, "refuses", refuses)
    source: Any = SimpleNamespace(timeline=FakeTimeline(None))
    target: Any = SimpleNamespace(handle=None)
    if refuses:
        with pytest.raises(VulkanError, match="vkImportSemaphoreFdKHR"):
            links.share(source, target)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(source.timeline.exported)
    else:
        assert links.share(source, target) is made[-1]
        os.close(source.timeline.exported)
    assert made[-1].closed == refuses
    os.close(source.timeline.writer)
