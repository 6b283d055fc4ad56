"""What kernels take on devices: measured once per device and driver, kept in ``VKPAR_CACHE_DIR``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vkpar import cachedir, env
from vkpar._version import __version__
from vkpar.errors import DeviceLostError, OutOfMemoryError, UnsupportedError, VulkanError
from vkpar.vulkan import capturing

if TYPE_CHECKING:
    from vkpar.device import Device

_log = logging.getLogger("vkpar")
_Found = TypeVar("_Found")
_known: dict[tuple[object, ...], Any] = {}
_lock = threading.RLock()


@dataclass(frozen=True)
class Measurement(Generic[_Found]):
    """Something that is measured of devices.

    Attributes:
        what: is measured, in messages.
        file: what the file's name has before the device's UUID and after it.
        measure: measures, and returns what JSON can hold.
        parse: makes the result of that; raises ValueError where it makes no sense.
        otherwise: says what stands for it with VKPAR_TUNING=off, where it cannot be measured or makes no sense, and
            inside a capture, which waits for nothing and finds nothing kept.
        unbuilt: says what does where the driver does not build a kernel; as ``otherwise`` by default.
        about: what the file has to say besides driver and version.
        more: what the result depends on besides.
    """

    what: str
    file: tuple[str, str]
    measure: Callable[[], Mapping[str, object]]
    parse: Callable[[Mapping[str, Any]], _Found]
    otherwise: Callable[[], _Found]
    unbuilt: Callable[[VulkanError], _Found] | None = None
    about: Mapping[str, object] = field(default_factory=dict)
    more: tuple[object, ...] = ()

    def of(self, device: Device) -> _Found:
        """Return what was measured of a device: in this process, an earlier one, or now."""
        tuning, info = env.get().tuning, device.info
        if tuning == "off":
            return self.otherwise()
        about = {**self.about, "vkpar": __version__, "driver": [info.driver_uuid, info.driver_version]}
        name = f"{self.file[0]}-{info.device_uuid}-{self.file[1]}.json"

        def read(document: Mapping[str, Any]) -> _Found:
            if any(document[key] != value for key, value in about.items()):
                raise ValueError("it is of another driver or version")
            return self.parse(document)

        key = (name, info.driver_uuid, info.driver_version, *self.more)
        with _lock:
            if key not in _known:
                found = cachedir.document(name, read, logging.INFO) if tuning == "auto" else None
                if found is None and capturing.current() is not None:
                    return self.otherwise()
                _known[key] = self._made(device, name, about) if found is None else found
            made: _Found = _known[key]
            return made

    def _made(self, device: Device, name: str, about: Mapping[str, object]) -> _Found:
        try:
            document = self.measure()
        except DeviceLostError:
            raise
        except (OutOfMemoryError, UnsupportedError) as error:
            _log.info("%s of %s: not measured: %s", self.what, device, error)
            return self.otherwise()
        except VulkanError as error:
            if self.unbuilt is not None:
                return self.unbuilt(error)
            _log.warning("%s does not build its %s, which is left alone: %s", device, self.what, error)
            return self.otherwise()
        try:
            made = self.parse(document)
        except ValueError as error:
            _log.info("%s of %s: the times make no sense: %s", self.what, device, error)
            return self.otherwise()
        cachedir.keep(name, {**about, **document}, logging.INFO)
        return made
