"""AMD's HIP, which has the calls of CUDA's driver library under other names. Never run on a card: ``VKPAR_PEER=try``.

See the HIP Runtime API, sections "Virtual Memory Management" and "Stream Memory Operations". The latter promises waits
for words of signal memory alone; the self-test finds out whether others do.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.peer.cuda import DECLARATIONS, Cuda

_OTHERS: Final = {  # all others begin with "hip" in place of "cu"
    "cuDeviceGetCount": "hipGetDeviceCount",
    "cuDeviceGetUuid": "hipDeviceGetPCIBusId",
    "cuStreamCreate": "hipStreamCreateWithFlags",
}
_DIFFERENT: Final = {
    "int hipGetErrorName(int, const char **);": "const char *hipGetErrorName(int);",
    "int hipDeviceGetPCIBusId(CUuuid *, int);": "int hipDeviceGetPCIBusId(char *, int, int);",
    "int hipStreamWaitValue32(void *, uint64_t, uint32_t, unsigned);": (
        "int hipStreamWaitValue32(void *, uint64_t, uint32_t, unsigned, uint32_t);"
    ),
}
_ADDRESS_NBYTES: Final = 64


def _spelled(name: str) -> str:
    return _OTHERS.get(name, "hip" + name.removeprefix("cu").removesuffix("_v2"))


def _declarations() -> str:
    made = re.sub(r"\bcu[A-Z]\w+", lambda found: _spelled(found[0]), DECLARATIONS)
    for theirs, ours in _DIFFERENT.items():
        made = made.replace(theirs, ours)
    return made


class Hip(Cuda):
    """The library; see :class:`~vkpar.vulkan.peer.vendor.Vendor`."""

    name = "HIP"
    masks = True
    _library, _declarations = "libamdhip64.so", _declarations()

    def spelled(self, name: str) -> str:
        """Return what the library calls a function of CUDA's."""
        return _spelled(name)

    def error_name(self, status: int) -> str:
        """Return the name of a status."""
        text = self.function("cuGetErrorName")(status)
        return f"status {status}" if text == self.ffi.NULL else self.ffi.string(text).decode()

    def _is(self, device: int, info: DeviceInfo) -> bool:
        """Compare addresses on the bus: the UUIDs of HIP and of Vulkan's drivers have nothing in common."""
        text = self.ffi.new("char[]", _ADDRESS_NBYTES)
        self.call("cuDeviceGetUuid", text, _ADDRESS_NBYTES, device)
        return self.ffi.string(text).decode().lower() == info.pci_address


@functools.cache
def load() -> Hip:
    """Return the library, loaded once.

    Raises:
        UnsupportedError: it cannot be used.
    """
    return Hip()
