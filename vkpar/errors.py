"""Every exception that vkpar raises, under one root."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LIMITS = {
    errno.EMFILE: "VK_ERROR_TOO_MANY_OBJECTS",
    errno.ENFILE: "VK_ERROR_TOO_MANY_OBJECTS",
    errno.ENOMEM: "VK_ERROR_OUT_OF_HOST_MEMORY",
    errno.EAGAIN: "VK_ERROR_OUT_OF_HOST_MEMORY",
}


class VkparError(Exception):
    """Root of every error raised by vkpar; it can be pickled, for a process pool, and copied.

    Examples:
        >>> try:
        ...     device.zeros(3).reshape(2, 2)
        ... except vkpar.VkparError as error:
        ...     type(error).__name__
        'InvalidUsageError'
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes an equal one: exceptions' own way would call ``__init__`` with the whole message."""
        return _again, (type(self), self.args), self.__dict__


def _again(kind: type[VkparError], arguments: tuple[Any, ...]) -> VkparError:
    made: VkparError = (OSError if issubclass(kind, OSError) else Exception).__new__(kind, *arguments)
    made.args = arguments  # OSErrors leave this to __init__
    return made


class InvalidUsageError(VkparError, ValueError):
    """The caller's arguments, or the state of an object, do not allow the call (use after close too).

    Examples:
        >>> try:
        ...     vkpar.open_devices("no such card")
        ... except vkpar.InvalidUsageError as error:
        ...     "no such card" in str(error)
        True
    """


class IndexingError(InvalidUsageError, IndexError):
    """A key of an array that is out of range, or of a kind that arrays do not take.

    Examples:
        >>> try:
        ...     device.zeros(3)[7]
        ... except IndexError as error:
        ...     type(error).__name__
        'IndexingError'
    """


class ReadOnlyError(InvalidUsageError, AttributeError):
    """An attribute that cannot be set; the message says what to write.

    Examples:
        >>> try:
        ...     device.zeros(3).shape = (3, 1)
        ... except AttributeError as error:
        ...     type(error).__name__
        'ReadOnlyError'
    """


class WeightsError(InvalidUsageError):
    """A file of weights that is not what it says, or a tensor that it lacks; the message says what to do.

    Attributes:
        path: the file or folder; empty where there is none.
        tensor: the name of the tensor that is wrong; empty where it is the whole file.

    Examples:
        >>> try:
        ...     vkpar.parallel.open_weights("/no/such/model")
        ... except vkpar.WeightsError as error:
        ...     error.path
        '/no/such/model'
    """

    def __init__(self, message: str, path: str = "", tensor: str = "") -> None:
        super().__init__(
            ": ".join(part for part in (path, f"tensor {tensor[:200]!r}" if tensor else "", message) if part)
        )
        self.path = path
        self.tensor = tensor


class UnsupportedError(VkparError):
    """A device, driver or machine lacks something that the call needs; the message names it.

    Examples:
        >>> try:
        ...     vkpar.exp(device.zeros(3, "uint32"))
        ... except vkpar.UnsupportedError as error:
        ...     type(error).__name__
        'UnsupportedError'
    """


class OperandError(UnsupportedError, TypeError):
    """An operator, or a function of NumPy, that does not take arrays on devices; the message says what does.

    Examples:
        >>> try:
        ...     np.fft.fft(device.zeros(4))
        ... except vkpar.OperandError as error:
        ...     isinstance(error, TypeError)
        True
    """


class DLPackError(UnsupportedError, BufferError):
    """Elements that DLPack cannot hand over from or to where they are.

    Examples:
        >>> issubclass(vkpar.DLPackError, BufferError)  # as consumers of DLPack expect it
        True
    """


class ShaderCompileError(VkparError):
    r"""GLSL that does not compile.

    Attributes:
        log: what the compiler printed.

    Examples:
        >>> try:
        ...     vkpar.Kernel(device, "#version 450\nvoid main() { missing(); }")
        ... except vkpar.ShaderCompileError as error:
        ...     "missing" in error.log
        True
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(f"{message}\n{log}".rstrip())
        self.log = log


class VulkanError(VkparError):
    """A Vulkan call that failed.

    Attributes:
        result: the name of the VkResult, such as ``VK_ERROR_INITIALIZATION_FAILED``.
        call: the Vulkan function that returned it.

    Args:
        detail: what the message adds to both.
        message: the whole message, where a sentence says more than the name of the call.

    Examples:
        >>> str(vkpar.VulkanError("VK_ERROR_INITIALIZATION_FAILED", "vkCreateDevice"))
        'vkCreateDevice failed: VK_ERROR_INITIALIZATION_FAILED'
    """

    def __init__(self, result: str, call: str, detail: str = "", *, message: str = "") -> None:
        super().__init__(message or f"{call} failed: {result}" + (f" ({detail})" if detail else ""))
        self.result = result
        self.call = call


class DeviceLostError(VulkanError):
    """The device is gone (VK_ERROR_DEVICE_LOST) or was quarantined; it cannot be used again.

    Examples:
        >>> issubclass(vkpar.DeviceLostError, vkpar.VulkanError)
        True
    """


class OutOfMemoryError(VulkanError, MemoryError):
    """No memory is left for the call, of a device or the host; or no file descriptor, or no thread.

    Examples:
        >>> try:
        ...     device.empty(1 << 50, "uint8")
        ... except MemoryError as error:
        ...     isinstance(error, vkpar.VulkanError)
        True
    """


class ValidationError(VkparError):
    """The Vulkan validation layer reported messages (``VKPAR_VALIDATION=1``).

    Attributes:
        messages: the texts, in the order in which the layer gave them.

    Examples:
        >>> vkpar.ValidationError(["a message of the layer"]).messages
        ['a message of the layer']
    """

    def __init__(self, messages: list[str]) -> None:
        super().__init__("the Vulkan validation layer reported:\n" + "\n".join(messages))
        self.messages = messages


class WaitTimeoutError(VkparError, TimeoutError):
    """A wait ran out of time; the work goes on.

    Attributes:
        details: rank, device, operation and wanted and reached timeline values, where known.

    Examples:
        >>> try:
        ...     raise vkpar.WaitTimeoutError("rank 1 waits", {"rank": 1})
        ... except TimeoutError as error:
        ...     error.details["rank"]
        1
    """

    def __init__(self, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details = details or {}


class CommunicatorError(VkparError):
    """A communicator that failed and can no longer be used; ``__cause__`` is the first failure.

    Attributes:
        details: rank, device, operation, step and wanted and reached timeline values, where known.

    Examples:
        >>> issubclass(vkpar.CommunicatorError, vkpar.VkparError)  # its __cause__ is the first failure
        True
    """

    def __init__(self, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details = details or {}


@contextmanager
def within_limits(what: str) -> Iterator[None]:
    """Raise the typed error where Python finds that the system has nothing left for ``what``.

    Raises:
        OutOfMemoryError: no file descriptor, no memory, or no thread; other errors of the system stay as they are.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        if not isinstance(error, OSError):
            result = "VK_ERROR_OUT_OF_HOST_MEMORY" if "new thread" in str(error) else None  # Python has no other sign
        else:
            result = _LIMITS.get(error.errno or 0)
        if result is None:
            raise
        raise OutOfMemoryError(result, "", message=f"the system has nothing left for {what}: {error}") from error
