"""SPIR-V: the kernels that ship with the package, the user's own GLSL, and what a module declares."""

from __future__ import annotations

import functools
import importlib.resources
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vkpar.errors import InvalidUsageError, ShaderCompileError, UnsupportedError

_MAGIC = 0x07230203
_NO_COMPILER = (
    "compiling GLSL needs libshaderc, glslc or glslangValidator: install libshaderc1 or glslang-tools "
    "(Debian, Ubuntu), or pass SPIR-V"
)


@functools.cache
def shipped(name: str) -> bytes:
    """Return the SPIR-V of the built-in kernel ``name``."""
    return importlib.resources.files("vkpar").joinpath("spirv", f"{name}.spv").read_bytes()


def compile_glsl(source: str, entry: str = "main", defines: dict[str, str] | None = None) -> bytes:
    """Compile a GLSL compute shader to SPIR-V for Vulkan 1.2.

    Raises:
        ShaderCompileError: the source has errors; the message ends with the compiler's log.
        UnsupportedError: no compiler on this machine.
    """
    defines = defines or {}
    library = _shaderc()
    if library is not None:
        return _compile_with_shaderc(library, source, entry, defines)
    for tool in ("glslc", "glslangValidator"):
        path = shutil.which(tool)
        if path:
            return _compile_with_tool(path, tool, source, entry, defines)
    raise UnsupportedError(_NO_COMPILER)


def compiler() -> str | None:
    """Return the name of the GLSL compiler that :func:`compile_glsl` uses, None where there is none."""
    if _shaderc() is not None:
        return "libshaderc"
    return next((tool for tool in ("glslc", "glslangValidator") if shutil.which(tool)), None)


class _Shaderc:
    """libshaderc, called directly."""

    _CDEF = """
    typedef struct shaderc_compiler* shaderc_compiler_t;
    typedef struct shaderc_compile_options* shaderc_compile_options_t;
    typedef struct shaderc_compilation_result* shaderc_compilation_result_t;
    shaderc_compiler_t shaderc_compiler_initialize(void);
    shaderc_compile_options_t shaderc_compile_options_initialize(void);
    void shaderc_compile_options_release(shaderc_compile_options_t);
    void shaderc_compile_options_add_macro_definition(
        shaderc_compile_options_t, const char*, size_t, const char*, size_t);
    void shaderc_compile_options_set_target_env(shaderc_compile_options_t, int, uint32_t);
    void shaderc_compile_options_set_optimization_level(shaderc_compile_options_t, int);
    shaderc_compilation_result_t shaderc_compile_into_spv(
        const shaderc_compiler_t, const char*, size_t, int, const char*, const char*, const shaderc_compile_options_t);
    int shaderc_result_get_compilation_status(const shaderc_compilation_result_t);
    const char* shaderc_result_get_error_message(const shaderc_compilation_result_t);
    const char* shaderc_result_get_bytes(const shaderc_compilation_result_t);
    size_t shaderc_result_get_length(const shaderc_compilation_result_t);
    void shaderc_result_release(shaderc_compilation_result_t);
    """

    def __init__(self) -> None:
        from cffi import FFI

        self.ffi = FFI()
        self.ffi.cdef(self._CDEF)
        self.lib = self._open()
        self.compiler = self.lib.shaderc_compiler_initialize()

    def _open(self) -> Any:
        for name in ("libshaderc.so.1", "libshaderc_shared.so.1", "libshaderc_shared.so"):
            try:
                return self.ffi.dlopen(name)
            except OSError:
                continue
        raise OSError("libshaderc not found")


@functools.cache
def _shaderc() -> _Shaderc | None:
    try:
        return _Shaderc()
    except OSError:
        return None


def _compile_with_shaderc(shaderc: _Shaderc, source: str, entry: str, defines: dict[str, str]) -> bytes:
    lib, ffi = shaderc.lib, shaderc.ffi
    options = lib.shaderc_compile_options_initialize()
    text = source.encode()
    compute_shader, vulkan, version_1_2, performance = 2, 0, (1 << 22) | (2 << 12), 2
    lib.shaderc_compile_options_set_target_env(options, vulkan, version_1_2)
    lib.shaderc_compile_options_set_optimization_level(options, performance)
    for name, value in defines.items():
        key, worth = name.encode(), str(value).encode()
        lib.shaderc_compile_options_add_macro_definition(options, key, len(key), worth, len(worth))
    result = lib.shaderc_compile_into_spv(
        shaderc.compiler, text, len(text), compute_shader, b"kernel", entry.encode(), options
    )
    try:
        if lib.shaderc_result_get_compilation_status(result) != 0:
            log = ffi.string(lib.shaderc_result_get_error_message(result)).decode("utf-8", "replace")
            raise ShaderCompileError("GLSL does not compile:", log)
        size = lib.shaderc_result_get_length(result)
        return bytes(ffi.buffer(lib.shaderc_result_get_bytes(result), size))
    finally:
        lib.shaderc_result_release(result)
        lib.shaderc_compile_options_release(options)


def _compile_with_tool(path: str, tool: str, source: str, entry: str, defines: dict[str, str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        text, binary = Path(folder, "kernel.comp"), Path(folder, "kernel.spv")
        text.write_text(source)
        flags = [f"-D{name}={value}" for name, value in defines.items()]
        if tool == "glslc":
            command = [path, "--target-env=vulkan1.2", f"-fentry-point={entry}", *flags, "-o", str(binary), str(text)]
        else:
            command = [path, "--target-env", "vulkan1.2", "-e", entry, "--source-entrypoint", "main", *flags]
            command += ["-V", "-o", str(binary), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ShaderCompileError("GLSL does not compile:", done.stdout + done.stderr)
        return binary.read_bytes()


@dataclass(frozen=True)
class Interface:
    """What a SPIR-V module declares.

    Attributes:
        entries: names of its compute entry points.
        bindings: storage-buffer bindings of set 0; ``foreign`` tells of anything in other sets or of other kinds.
        push_nbytes: bytes of its push-constant block.
    """

    entries: frozenset[str]
    bindings: frozenset[int]
    foreign: bool
    push_nbytes: int


def reflect(spirv: bytes) -> Interface:
    """Read a module's interface (SPIR-V specification, section 2.3: a stream of words).

    Raises:
        InvalidUsageError: not SPIR-V.
    """
    if len(spirv) < 20 or len(spirv) % 4 or struct.unpack_from("<I", spirv)[0] != _MAGIC:
        raise InvalidUsageError("not a SPIR-V module: a kernel is GLSL text or SPIR-V bytes")
    return _Reader(spirv).interface()


class _Reader:
    """One pass over the instructions that declare an interface."""

    _ENTRY, _INT, _FLOAT, _VECTOR, _MATRIX, _ARRAY, _STRUCT, _POINTER = 15, 21, 22, 23, 24, 28, 30, 32
    _CONSTANT, _VARIABLE, _DECORATE, _MEMBER_DECORATE = 43, 59, 71, 72
    _BINDING, _SET, _OFFSET, _ARRAY_STRIDE, _MATRIX_STRIDE = 33, 34, 35, 6, 7
    _UNIFORM_CONSTANT, _UNIFORM, _PUSH, _STORAGE = 0, 2, 9, 12
    _GLCOMPUTE = 5

    def __init__(self, spirv: bytes) -> None:
        self._words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
        self._entries: set[str] = set()
        self._types: dict[int, tuple[int, ...]] = {}
        self._constants: dict[int, int] = {}
        self._marks: dict[tuple[int, int], int] = {}
        self._members: dict[tuple[int, int, int], int] = {}
        self._variables: list[tuple[int, int, int]] = []
        self._read()

    def _read(self) -> None:
        at = 5
        while at < len(self._words):
            count, opcode = self._words[at] >> 16, self._words[at] & 0xFFFF
            if count == 0 or at + count > len(self._words):
                raise InvalidUsageError("a malformed SPIR-V module")
            self._instruction(opcode, self._words[at + 1 : at + count])
            at += count

    def _instruction(self, opcode: int, words: tuple[int, ...]) -> None:
        if opcode == self._ENTRY and words[0] == self._GLCOMPUTE:
            raw = struct.pack(f"<{len(words) - 2}I", *words[2:])
            self._entries.add(raw.split(b"\0", 1)[0].decode())
        elif self._INT <= opcode <= self._POINTER:
            self._types[words[0]] = (opcode, *words[1:])
        elif opcode == self._CONSTANT:
            self._constants[words[1]] = words[2]
        elif opcode == self._VARIABLE:
            self._variables.append((words[0], words[1], words[2]))
        elif opcode == self._DECORATE:
            self._marks[words[0], words[1]] = words[2] if len(words) > 2 else 0
        elif opcode == self._MEMBER_DECORATE and len(words) > 3:
            self._members[words[0], words[1], words[2]] = words[3]

    def interface(self) -> Interface:
        bindings, foreign, push = set(), False, 0
        for pointer, variable, storage in self._variables:
            if storage == self._PUSH:
                push = self._size(self._types[pointer][2])
            elif storage in (self._STORAGE, self._UNIFORM, self._UNIFORM_CONSTANT):
                foreign |= storage != self._STORAGE or self._marks.get((variable, self._SET), 0) != 0
                bindings.add(self._marks.get((variable, self._BINDING), 0))
        return Interface(frozenset(self._entries), frozenset(bindings), foreign, push)

    def _size(self, kind: int) -> int:
        opcode, *rest = self._types[kind]
        if opcode in (self._INT, self._FLOAT):
            return rest[0] // 8
        if opcode in (self._VECTOR, self._MATRIX):
            return self._size(rest[0]) * rest[1]
        if opcode == self._ARRAY:
            stride = self._marks.get((kind, self._ARRAY_STRIDE)) or self._size(rest[0])
            return stride * self._constants.get(rest[1], 0)
        if opcode == self._STRUCT:
            ends = (
                self._members.get((kind, index, self._OFFSET), 0) + self._member_size(kind, index, member)
                for index, member in enumerate(rest)
            )
            return max(ends, default=0)
        return 8

    def _member_size(self, kind: int, index: int, member: int) -> int:
        stride = self._members.get((kind, index, self._MATRIX_STRIDE))
        return stride * self._types[member][2] if stride else self._size(member)
