"""CUDA's driver library, which every NVIDIA driver brings: contexts, memory, streams. No toolkit and no CUDA kernel."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from cffi import FFI

from vkpar.errors import UnsupportedError, VulkanError
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.memory.buffer import BufferRange
from vkpar.vulkan.peer.imported import FdImport

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "CUDA"
DECLARATIONS = """
typedef struct { char bytes[16]; } CUuuid;
typedef struct { int type; int id; } CUmemLocation;
typedef struct {
    int type; int requestedHandleTypes; CUmemLocation location; void *win32HandleMetaData;
    struct { unsigned char compressionType, direct; unsigned short usage; unsigned char reserved[4]; } flags;
} CUmemAllocationProp;
typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;
int cuInit(unsigned);
int cuGetErrorName(int, const char **);
int cuDeviceGetCount(int *);
int cuDeviceGet(int *, int);
int cuDeviceGetUuid(CUuuid *, int);
int cuDeviceCanAccessPeer(int *, int, int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxPushCurrent_v2(void *);
int cuCtxPopCurrent_v2(void **);
int cuMemGetAllocationGranularity(size_t *, const CUmemAllocationProp *, int);
int cuMemCreate(uint64_t *, size_t, const CUmemAllocationProp *, uint64_t);
int cuMemRelease(uint64_t);
int cuMemAddressReserve(uint64_t *, size_t, size_t, uint64_t, uint64_t);
int cuMemAddressFree(uint64_t, size_t);
int cuMemMap(uint64_t, size_t, size_t, uint64_t, uint64_t);
int cuMemUnmap(uint64_t, size_t);
int cuMemSetAccess(uint64_t, size_t, const CUmemAccessDesc *, size_t);
int cuMemExportToShareableHandle(void *, uint64_t, int, uint64_t);
int cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, void *);
int cuMemsetD32Async(uint64_t, unsigned, size_t, void *);
int cuStreamCreate(void **, unsigned);
int cuStreamDestroy_v2(void *);
int cuStreamQuery(void *);
int cuStreamSynchronize(void *);
int cuStreamWaitValue32_v2(void *, uint64_t, uint32_t, unsigned);
int cuStreamWriteValue32_v2(void *, uint64_t, uint32_t, unsigned);
"""
# Of the library's enumerations: device memory, pinned, behind a file descriptor, read and written; the granularity that
# serves best; a stream that no other waits for; a stream that has work left.
_PINNED, _DEVICE, _DESCRIPTOR, _READ_WRITE, _BEST, _APART, _NOT_READY = 1, 1, 1, 3, 1, 1, 600
_STREAM_FUNCTIONS = (
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuStreamWaitValue32_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuStreamWriteValue32_v2",
)


class CudaError(VulkanError):
    """A call of CUDA's driver library, or of HIP, failed; ``result`` is the status by name, ``call`` the function."""


class Cuda:
    """The library; see :class:`~vkpar.vulkan.peer.vendor.Vendor`.

    Raises:
        UnsupportedError: there is no such library, or it finds no card.
    """

    name = NAME
    masks, alone = False, True
    _library, _declarations = "libcuda.so.1", DECLARATIONS

    def __init__(self) -> None:
        self.ffi = FFI()
        self.ffi.cdef(self._declarations)
        try:
            self._lib: Any = self.ffi.dlopen(self._library)
            addresses = [self.ffi.cast("uintptr_t", self.function(name)) for name in _STREAM_FUNCTIONS]
        except (OSError, AttributeError) as error:
            raise UnsupportedError(f"{self._library} cannot be used: {error}") from error
        self.functions = tuple(map(int, addresses))
        status = self.function("cuInit")(0)
        if status:
            raise UnsupportedError(f"{self._library}: {self.spelled('cuInit')} says {self.error_name(status)}")

    def spelled(self, name: str) -> str:
        """Return what the library calls a function of CUDA's."""
        return name

    def function(self, name: str) -> Any:
        """Return a function."""
        return getattr(self._lib, self.spelled(name))

    def error_name(self, status: int) -> str:
        """Return the name of a status."""
        text = self.ffi.new("char**")
        known = self.function("cuGetErrorName")(status, text) == 0 and text[0] != self.ffi.NULL
        return self.ffi.string(text[0]).decode() if known else f"status {status}"

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            CudaError: its status is not success.
        """
        status = self.function(name)(*arguments)
        if status:
            raise CudaError(self.error_name(status), self.spelled(name))

    def get(self, name: str, kind: str, *arguments: Any) -> Any:
        """Call a function whose first argument is where it puts its result; return that."""
        made = self.ffi.new(f"{kind}*")
        self.call(name, made, *arguments)
        return made[0]

    def card(self, info: DeviceInfo) -> CudaCard | None:
        """Return the card of that UUID."""
        for number in range(int(self.get("cuDeviceGetCount", "int"))):
            device = self.get("cuDeviceGet", "int", number)
            if self._is(int(device), info):
                return CudaCard(self, int(device))
        return None

    def _is(self, device: int, info: DeviceInfo) -> bool:
        uuid = self.get("cuDeviceGetUuid", "CUuuid", device)
        return bytes(self.ffi.buffer(uuid.bytes)).hex() == info.device_uuid.replace("-", "")


@functools.cache
def load() -> Cuda:
    """Return the library, loaded once.

    Raises:
        UnsupportedError: it cannot be used.
    """
    return Cuda()


class CudaCard:
    """One card; it holds the card's primary context, which all libraries of a process share."""

    def __init__(self, cuda: Cuda, number: int) -> None:
        self.cuda, self.number = cuda, number
        self._context: Any = cuda.get("cuDevicePrimaryCtxRetain", "void*", number)
        self.context = int(cuda.ffi.cast("uintptr_t", self._context))

    @contextmanager
    def current(self) -> Iterator[Cuda]:
        """Make the card's context the thread's inside."""
        self.cuda.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield self.cuda
        finally:
            self.cuda.function("cuCtxPopCurrent_v2")(self.cuda.ffi.new("void**"))

    def reaches(self, other: CudaCard) -> bool:
        """Say whether its copy engines read and write ``other``'s memory."""
        return bool(self.cuda.get("cuDeviceCanAccessPeer", "int", self.number, other.number))

    def memory(
        self, device: Any, info: DeviceInfo, families: Sequence[int], nbytes: int, cards: Sequence[CudaCard]
    ) -> CudaMemory:
        """Return new memory of the card, zeros, for queue families of ``device`` and the copy engines of ``cards``."""
        return CudaMemory(self, device, info, families, nbytes, cards)

    def stream(self) -> CudaStream:
        """Return a new stream."""
        return CudaStream(self)

    def close(self) -> None:
        """Let go of the context."""
        context, self._context = self._context, None
        if context is not None:
            self.cuda.call("cuDevicePrimaryCtxRelease_v2", self.number)


class CudaStream:
    """A stream that waits for no other one."""

    def __init__(self, card: CudaCard) -> None:
        self._card = card
        with card.current() as cuda:
            self._stream: Any = cuda.get("cuStreamCreate", "void*", _APART)
        self.handle = int(card.cuda.ffi.cast("uintptr_t", self._stream))

    def call(self, name: str, *arguments: Any) -> None:
        """Give the stream something to do."""
        with self._card.current() as cuda:
            cuda.call(name, *arguments, self._stream)

    def idle(self) -> bool:
        """Say whether all is done.

        Raises:
            CudaError: something of it failed.
        """
        with self._card.current() as cuda:
            status = cuda.function("cuStreamQuery")(self._stream)
            if status not in (0, _NOT_READY):
                raise CudaError(cuda.error_name(status), cuda.spelled("cuStreamQuery"))
        return bool(status == 0)

    def finish(self) -> None:
        """Wait until all is done."""
        with self._card.current() as cuda:
            cuda.call("cuStreamSynchronize", self._stream)

    def close(self) -> None:
        """Give it back."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with self._card.current() as cuda:
                cuda.call("cuStreamDestroy_v2", stream)


class CudaMemory:
    """Memory that CUDA made and Vulkan imports; the other way round, no card would reach another's memory directly.

    See the CUDA Driver API, section "Virtual Memory Management".
    """

    def __init__(
        self,
        card: CudaCard,
        device: Any,
        info: DeviceInfo,
        families: Sequence[int],
        nbytes: int,
        cards: Sequence[CudaCard],
    ) -> None:
        cuda = card.cuda
        kept = cuda.ffi.new("CUmemAllocationProp*", {"type": _PINNED, "requestedHandleTypes": _DESCRIPTOR})
        kept.location.type, kept.location.id = _DEVICE, card.number
        granule = int(cuda.get("cuMemGetAllocationGranularity", "size_t", kept, _BEST))
        self.nbytes = -(-nbytes // granule) * granule
        with ExitStack() as undo, card.current():
            handle = cuda.get("cuMemCreate", "uint64_t", self.nbytes, kept, 0)
            undo.callback(cuda.call, "cuMemRelease", handle)
            self.address = int(cuda.get("cuMemAddressReserve", "uint64_t", self.nbytes, granule, 0, 0))
            undo.callback(cuda.call, "cuMemAddressFree", self.address, self.nbytes)
            cuda.call("cuMemMap", self.address, self.nbytes, 0, handle, 0)
            undo.callback(cuda.call, "cuMemUnmap", self.address, self.nbytes)
            access = cuda.ffi.new("CUmemAccessDesc[]", len(cards))
            for one, other in zip(access, cards, strict=True):
                one.location.type, one.location.id, one.flags = _DEVICE, other.number, _READ_WRITE
            cuda.call("cuMemSetAccess", self.address, self.nbytes, access, len(cards))
            zeros = card.stream()
            undo.callback(zeros.close)
            zeros.call("cuMemsetD32Async", self.address, 0, self.nbytes // 4)
            zeros.finish()
            descriptor = int(cuda.get("cuMemExportToShareableHandle", "int", handle, _DESCRIPTOR, 0))
            self._import = FdImport(device, info, families, descriptor, self.nbytes)
            undo.callback(self._import.close)
            self._resources = undo.pop_all()
        self._card, self.heap = card, self._import.heap

    def range(self) -> BufferRange:
        """Return all of it as Vulkan's device names it."""
        return self._import.range()

    def close(self) -> None:
        """Give it back."""
        with self._card.current():
            self._resources.close()
