"""What a kernel is made of: GLSL or SPIR-V, as text, bytes or a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from vkpar.errors import InvalidUsageError, ShaderCompileError
from vkpar.vulkan.pipelines import includes, shader

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    Source = str | os.PathLike[str] | ReadableBuffer

_SUFFIXES: Final = (".comp", ".glsl", ".spv", ".cs", ".frag", ".vert", ".hlsl", ".slang")


def compiled(source: Source, entry: str, defines: dict[str, object], folders: list[Path]) -> tuple[bytes, str]:
    """Return the SPIR-V of a kernel's source, and what messages call the kernel.

    Args:
        source: GLSL, SPIR-V, or the path of a file of either.
        entry: the entry point's name.
        defines: macros for GLSL.
        folders: where included files are looked for, after the folder of the file that includes them.

    Raises:
        ShaderCompileError: GLSL with errors.
        UnsupportedError: no compiler on this machine.
        InvalidUsageError: another kind of source, a file that cannot be read, or arguments that are for the other kind.
    """
    path = Path(source) if isinstance(source, os.PathLike) else None
    if path is not None and path.suffix.lower() == ".spv":
        try:
            source = path.read_bytes()
        except OSError as error:
            raise InvalidUsageError(f"a kernel's source cannot be read: {error}") from error
    if isinstance(source, bytes) or (path is None and not isinstance(source, str)):
        if defines or folders:
            raise InvalidUsageError("defines and include_dirs apply to GLSL, not to SPIR-V")
        code = as_bytes(source, "a kernel is GLSL text or SPIR-V bytes, or the pathlib.Path of either")
        return code, f"{entry!r}" + (f" of {path.name}" if path else "")
    if entry != "main":
        raise InvalidUsageError(f"the entry point of GLSL is 'main', not {entry!r}; entry is for SPIR-V")
    text = includes.read(path) if path is not None else str(source).removeprefix("\ufeff")
    if path is None:
        _refuse_file(text)
    missing: list[str] = []
    if path is not None or includes.has_includes(text):
        text, missing = includes.expand(text, str(path or "kernel"), path.parent if path else None, folders)
    try:
        made = shader.compile_glsl(text, {str(name): _macro(name, value) for name, value in defines.items()})
    except ShaderCompileError as error:
        if missing and includes.NOT_FOUND in error.log:
            raise ShaderCompileError("; ".join(missing), error.log) from error
        raise
    return made, path.name if path else "of GLSL"


def _macro(name: str, value: object) -> str:
    """Return what a macro stands for; truth values are such in expressions and in ``#if``, which knows no ``true``."""
    if isinstance(value, (bool, np.bool_)):
        return "(1 == 1)" if value else "(1 == 0)"
    text = str(value)
    if value is None or "\0" in f"{name}{text}":
        raise InvalidUsageError(f"defines: {name!r} stands for a number, a truth value or a text, not {value!r}")
    return text


def as_bytes(source: Any, what: str) -> bytes:
    """Return the bytes of anything with the buffer protocol.

    Raises:
        InvalidUsageError: it is something else; the message says ``what`` it is to be.
    """
    try:
        return memoryview(source).tobytes()
    except (TypeError, ValueError) as error:
        raise InvalidUsageError(f"{what}, not {type(source).__name__}") from error


def _refuse_file(source: str) -> None:
    """Refuse the name of a file in place of GLSL: compilers' messages about that say nothing."""
    if any(sign in source for sign in "\n;{}#") or not source.strip():
        return
    if source.lower().endswith(_SUFFIXES) or os.path.exists(source):
        raise InvalidUsageError(f"{source!r} is the name of a file, not GLSL: pass pathlib.Path({source!r})")
