"""The exceptions: one root, the built-in classes that callers catch, and what they carry."""

from __future__ import annotations

import copy
import errno
import importlib
import inspect
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

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


# ---- in another process ----


def _every_kind() -> list[type[vkpar.VkparError]]:
    """Return every error of the package, those of single modules, too."""
    import pkgutil

    for module in pkgutil.walk_packages(vkpar.__path__, "vkpar."):
        if not module.name.endswith(("__main__", "._pump", ".hook-vkpar")):  # which PyInstaller reads
            importlib.import_module(module.name)
    found: list[type[vkpar.VkparError]] = [vkpar.VkparError]
    for kind in found:
        found += [each for each in kind.__subclasses__() if each.__module__.startswith("vkpar.") and each not in found]
    return found


def _example(kind: type[vkpar.VkparError]) -> vkpar.VkparError:
    """Return one with a value for everything that it takes."""
    given: list[object] = []
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            text = str(parameter.annotation)
            given.append({"rank": 3} if "dict" in text else [parameter.name] if "list" in text else parameter.name)
    return kind(*(given or ["what is wrong"]))


def _same(found: BaseException, error: vkpar.VkparError) -> None:
    assert type(found) is type(error)
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))


@pytest.mark.parametrize("kind", _every_kind(), ids=lambda kind: kind.__name__)
def test_every_error_can_be_pickled_and_copied(kind: type[vkpar.VkparError]) -> None:
    error = _example(kind)
    error.rank = 2  # type: ignore[attr-defined]  # as the pump notes it
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        _same(pickle.loads(pickle.dumps(error, protocol)), error)
    for copied in (copy.copy(error), copy.deepcopy(error)):
        _same(copied, error)


class _Own(errors.OutOfMemoryError):
    """Of a user: its ``__init__`` takes something else."""

    def __init__(self, number: int) -> None:
        super().__init__("VK_ERROR_OUT_OF_DEVICE_MEMORY", "mine", message=f"{number} too many")
        self.number = number


def test_errors_of_a_users_own_can_be_pickled() -> None:
    _same(pickle.loads(pickle.dumps(_Own(7))), _Own(7))


def _raise(kind: str) -> None:
    raise _example(getattr(errors, kind))


def test_errors_come_out_of_a_process_pool() -> None:
    """One that cannot be unpickled breaks the pool: every later call fails, or waits for ever."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for kind in (errors.VulkanError, errors.OutOfMemoryError, errors.DeviceLostError, errors.WaitTimeoutError):
            with pytest.raises(kind) as caught:
                pool.submit(_raise, kind.__name__).result(60)
            assert (str(caught.value), vars(caught.value)) == (str(_example(kind)), vars(_example(kind)))


# ---- what the system has no more of ----


@pytest.mark.parametrize(
    ("raised", "result"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "VK_ERROR_TOO_MANY_OBJECTS"),
        (OSError(errno.ENFILE, "Too many open files in system"), "VK_ERROR_TOO_MANY_OBJECTS"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "VK_ERROR_OUT_OF_HOST_MEMORY"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "VK_ERROR_OUT_OF_HOST_MEMORY"),
        (RuntimeError("can't start new thread"), "VK_ERROR_OUT_OF_HOST_MEMORY"),
    ],
    ids=str,
)
def test_what_runs_out_is_a_typed_error(raised: Exception, result: str) -> None:
    with (
        pytest.raises(errors.OutOfMemoryError, match="nothing left for a file") as caught,
        errors.within_limits("a file"),
    ):
        raise raised
    assert caught.value.result == result
    assert caught.value.__cause__ is raised
    assert str(raised) in str(caught.value)


@pytest.mark.parametrize(
    "raised", [FileNotFoundError(errno.ENOENT, "none"), RuntimeError("else"), RecursionError("deep")]
)
def test_other_errors_of_the_system_stay_as_they_are(raised: Exception) -> None:
    with pytest.raises(type(raised)) as caught, errors.within_limits("a file"):
        raise raised
    assert caught.value is raised
