"""Watches that nothing calls a driver on a device which another thread may be closing."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

import vkpar
from vkpar.comm.engine.health import Health
from vkpar.vulkan import api
from vkpar.vulkan.device import LogicalDevice


class Watch:
    """While it is entered, takes note of calls on opened devices that are made outside of every gate.

    A call is right inside the gate of its device, inside that of a communicator, for which the device's close waits,
    and in the thread that closes one of the two. What the C helper calls has locks of its own and is not seen.

    Attributes:
        calls: how many calls on devices were looked at.
        strays: those that are not right: the function's name, and who called it, the innermost first.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.strays: list[str] = []
        self._vk, self._lib = api.load(), api.load().lib
        self._devices: dict[int, LogicalDevice] = {}
        self._healths: list[Health] = []
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Watch:
        opened, made = LogicalDevice.__init__, Health.__init__

        def on_open(logical: LogicalDevice, *given: Any, **named: Any) -> None:
            opened(logical, *given, **named)
            self._devices[self._vk.address(logical.handle)] = logical

        def on_made(health: Health, *given: Any, **named: Any) -> None:
            made(health, *given, **named)
            self._healths.append(health)

        self._patch.setattr(LogicalDevice, "__init__", on_open)
        self._patch.setattr(Health, "__init__", on_made)
        self._patch.setattr(self._vk, "lib", self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patch.undo()

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._lib, name)

        def call(*arguments: Any) -> Any:
            self._look(name, arguments[0])
            return function(*arguments)

        return call if name.startswith("vk") else function

    def _look(self, name: str, first: Any) -> None:
        ffi = self._vk.ffi
        if not isinstance(first, ffi.CData) or ffi.typeof(first) is not ffi.typeof("VkDevice"):
            return
        device = self._devices.get(self._vk.address(first))
        if device is None or device.done:  # being opened, or a new one at the address of one that was closed
            return
        self.calls += 1
        if device.gate.is_inside() or device._closing._is_owned():  # type: ignore[attr-defined]
            return
        if any(health.gate.is_inside() or health.closing._is_owned() for health in self._healths):
            return
        package = str(Path(vkpar.__file__).parent)
        frames = [frame for frame in traceback.extract_stack() if frame.filename.startswith(package)]
        named = [f"{frame.filename.removeprefix(package)}:{frame.lineno} {frame.name}" for frame in frames[::-1]]
        self.strays.append(f"{name} by {', '.join(named[:8])}")
