"""The exceptions: one root, the built-in classes that callers catch, and what they carry."""

from __future__ import annotations

import inspect

import pytest

import vkpar
from vkpar import errors

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_the_root_and_is_public(kind: type[Exception]) -> None:
    assert issubclass(kind, vkpar.VkparError)
    assert getattr(vkpar, kind.__name__) is kind
    assert kind.__doc__


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InvalidUsageError, ValueError),
        (errors.OutOfMemoryError, MemoryError),
        (errors.WaitTimeoutError, TimeoutError),
    ],
)
def test_errors_are_the_builtin_ones_too(kind: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(kind, builtin)


@pytest.mark.parametrize("kind", [errors.VulkanError, errors.DeviceLostError, errors.OutOfMemoryError])
def test_vulkan_errors_name_the_call_and_its_result(kind: type[errors.VulkanError]) -> None:
    error = kind("VK_ERROR_DEVICE_LOST", "vkQueueSubmit", "rank 3")
    assert (error.result, error.call) == ("VK_ERROR_DEVICE_LOST", "vkQueueSubmit")
    assert str(error) == "vkQueueSubmit failed: VK_ERROR_DEVICE_LOST (rank 3)"
    assert str(kind("VK_ERROR_UNKNOWN", "vkCall")) == "vkCall failed: VK_ERROR_UNKNOWN"


def test_a_lost_device_and_no_memory_are_vulkan_errors() -> None:
    assert issubclass(errors.DeviceLostError, errors.VulkanError)
    assert issubclass(errors.OutOfMemoryError, errors.VulkanError)


def test_a_compile_error_carries_the_log() -> None:
    error = errors.ShaderCompileError("GLSL does not compile:", "line 1: oops\n")
    assert error.log == "line 1: oops\n"
    assert str(error).endswith("line 1: oops")
    assert str(errors.ShaderCompileError("no log")) == "no log"


@pytest.mark.parametrize("kind", [errors.WaitTimeoutError, errors.CommunicatorError])
def test_details_are_a_dict_of_their_own(kind: type[Exception]) -> None:
    assert kind("late", {"rank": 1}).details == {"rank": 1}  # type: ignore[attr-defined]
    first, second = kind("late"), kind("late")
    assert first.details == {}  # type: ignore[attr-defined]
    assert first.details is not second.details  # type: ignore[attr-defined]


def test_validation_errors_list_the_messages() -> None:
    error = errors.ValidationError(["VUID-a", "VUID-b"])
    assert error.messages == ["VUID-a", "VUID-b"]
    assert "VUID-a\nVUID-b" in str(error)
