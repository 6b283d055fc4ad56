"""SPIR-V that was made of GLSL before: in the process, and in files that outlive it.

Its key begins with a hash of the text and ends with one of the compiler: where there is no compiler, what any one made
of the text is found by how keys begin.
"""

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
_FORMAT: Final = b"vkpar SPIR-V 2\n"  # raise it when compilers are called in another way, or for another target
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
    key = _text_key(source, defines) + hashlib.sha256(compiler.encode()).hexdigest()
    with _lock:
        found = _modules.get(key)
    if found is None:
        found = _load(key)
        if found is None:
            found = make()
            _store(key, found)
        _remember(key, found)
    return found


def earlier(source: str, defines: dict[str, str]) -> bytes | None:
    """Return what some compiler made of a text before, the newest that is kept; None where nothing is."""
    if has_includes(source):
        return None
    text = _text_key(source, defines)
    with _lock:
        found = next((spirv for key, spirv in reversed(_modules.items()) if key.startswith(text)), None)
    if found is None:
        for key in _files(text):
            found = _load(key)
            if found is not None:
                _remember(key, found)
                break
    return found


def _text_key(source: str, defines: dict[str, str]) -> str:
    """Return what the keys of a text begin with."""
    text = json.dumps([source, sorted(defines.items())])
    return hashlib.sha256(text.encode()).hexdigest() + "-"


def _remember(key: str, spirv: bytes) -> None:
    with _lock:
        _modules[key] = spirv
        while len(_modules) > _MOST_KEPT:
            del _modules[next(iter(_modules))]


def _files(text: str) -> list[str]:
    """Return the keys of files that begin with ``text``, the newest first."""
    try:
        return [name.removeprefix(_PREFIX) for name in cachedir.names(_PREFIX + text)]
    except OSError as error:
        _log.debug("compiled kernels cannot be listed: %s", error)
        return []


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
