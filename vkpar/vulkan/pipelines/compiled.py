"""SPIR-V that was made of GLSL before: in the process, and in files that outlive it."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable
from typing import Final

from vkpar import cachedir
from vkpar.vulkan.pipelines.includes import has_includes

_log = logging.getLogger("vkpar")
_FORMAT: Final = b"vkpar SPIR-V 2\n"  # raise it when compilers are called in another way
_PREFIX: Final = "spirv-"
_MOST_KEPT: Final = 256  # modules in the process
_MOST_FILES: Final = 2000

_modules: dict[str, bytes] = {}  # oldest first
_lock = threading.Lock()


def kept(compiler: str, source: str, defines: dict[str, str], make: Callable[[], bytes]) -> bytes:
    """Return what ``make`` returns, from an earlier call with the same text where there was one.

    Args:
        compiler: which one ``make`` uses, its version and its target. It is empty where that is not known; then
            nothing is kept.
        source: GLSL, with the files in place that it includes. Nothing is kept where it still includes some.
        defines: its macros.
        make: compiles it.
    """
    if not compiler or has_includes(source):
        return make()
    text = json.dumps([compiler, source, sorted(defines.items())])
    key = hashlib.sha256(text.encode()).hexdigest()
    with _lock:
        found = _modules.get(key)
    if found is None:
        found = _load(key)
        if found is None:
            found = make()
            _store(key, found)
        with _lock:
            _modules[key] = found
            while len(_modules) > _MOST_KEPT:
                del _modules[next(iter(_modules))]
    return found


def _digest(key: str, spirv: bytes) -> bytes:
    return hashlib.sha256(key.encode() + spirv).digest()


def _load(key: str) -> bytes | None:
    """Return what the file of ``key`` holds; None where there is none, or a damaged one."""
    try:
        data = cachedir.read(_PREFIX + key)
    except OSError as error:
        _log.debug("a compiled kernel cannot be read: %s", error)
        return None
    start = len(_FORMAT) + hashlib.sha256().digest_size
    if data is None or data[:start] != _FORMAT + _digest(key, data[start:]):
        return None
    return data[start:]


def _store(key: str, spirv: bytes) -> None:
    """Write the file of ``key``; where that fails, the kernel is compiled again next time."""
    try:
        cachedir.write(_PREFIX + key, _FORMAT + _digest(key, spirv) + spirv)
        cachedir.prune(_PREFIX, _MOST_FILES)
    except OSError as error:
        _log.debug("a compiled kernel is not kept: %s", error)
