"""SPIR-V: the kernels that ship with the package, and the user's own GLSL."""

from __future__ import annotations

import functools
import importlib.resources
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from vkpar.errors import ShaderCompileError, UnsupportedError, within_limits
from vkpar.vulkan.pipelines import compiled

_TARGET = "vulkan1.2"
_NAMED = "push_constant"  # GLSL with this in it is compiled with names, by which vkpar.Kernel fills push constants
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NO_COMPILER = (
    "compiling GLSL needs libshaderc, glslc or glslangValidator: install glslang-tools (Debian, Ubuntu), "
    "or what has one of them; kernels take SPIR-V, too"
)


@functools.cache
def shipped(name: str) -> bytes:
    """Return the SPIR-V of the built-in kernel ``name``.

    Raises:
        OutOfMemoryError: the system has no file descriptor for it.
    """
    with within_limits(f"the file of the kernel {name}"):
        return importlib.resources.files("vkpar").joinpath("spirv", f"{name}.spv").read_bytes()


def compile_glsl(source: str, defines: dict[str, str] | None = None) -> bytes:
    """Compile a GLSL compute shader to SPIR-V for Vulkan 1.2; its entry point is ``main``.

    What the same compiler made of the same text before, in this process or an earlier one, is taken again; where there
    is no compiler, what any one made of it.

    Raises:
        ShaderCompileError: the source has errors; the message ends with the compiler's log.
        UnsupportedError: no compiler on this machine, and no text that one has compiled before; or one that cannot be
            run, or has no folder for its files.
        OutOfMemoryError: the system has no process, or no file descriptor, for the compiler.
    """
    defines = defines or {}
    library = _shaderc()
    if library is not None:
        used = library
        return compiled.kept(
            _file_version(used.path), source, defines, lambda: _compile_with_shaderc(used, source, defines)
        )
    found = _tool()
    if found is None:
        made = compiled.earlier(source, defines)
        if made is None:
            raise UnsupportedError(_NO_COMPILER)
        return made
    tool, path = found

    def compiled_anew() -> bytes:
        try:
            with within_limits(tool):
                return _compile_with_tool(path, tool, source, defines)
        except OSError as error:
            with within_limits(tool):  # where no file can be opened, tempfile says that there is no folder
                os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            raise UnsupportedError(f"{tool} cannot be run: {error}") from error

    return compiled.kept(_tool_version(path), source, defines, compiled_anew)


def _tool() -> tuple[str, str] | None:
    """Return the name and the path of the compiler that is run as a program, None where there is none."""
    paths = ((tool, shutil.which(tool)) for tool in ("glslc", "glslangValidator"))
    return next(((tool, path) for tool, path in paths if path), None)


def _file_version(path: str) -> str:
    """Return what changes when a compiler's file is replaced; nothing where the file is not known."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{_TARGET} {os.path.realpath(path)} {found.st_size} {found.st_mtime_ns}"


def _tool_version(path: str) -> str:
    """Return which compiler ``path`` is, and its version; nothing where it does not say."""
    try:
        version = _version_text(path, _file_version(path))
    except OSError:  # asked again next time
        return ""
    return version and f"{_file_version(path)}\n{version}"


@functools.cache
def _version_text(path: str, file_version: str) -> str:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", check=False)
    return done.stdout if done.returncode == 0 and file_version else ""


def compiler() -> str | None:
    """Return the name of the GLSL compiler that :func:`compile_glsl` uses, None where there is none."""
    if _shaderc() is not None:
        return "libshaderc"
    found = _tool()
    return found and found[0]


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
    void shaderc_compile_options_set_generate_debug_info(shaderc_compile_options_t);
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
        self._opened = self._open()
        self.path = self._loaded()

    @functools.cached_property
    def lib(self) -> Any:
        """The library's functions; reading their declarations takes longer than a kernel that is kept."""
        self.ffi.cdef(self._CDEF)
        return self._opened

    @functools.cached_property
    def compiler(self) -> Any:
        """A compiler, for the life of the process."""
        return self.lib.shaderc_compiler_initialize()

    def _open(self) -> Any:
        for name in ("libshaderc.so.1", "libshaderc_shared.so.1", "libshaderc_shared.so"):
            try:
                return self.ffi.dlopen(name)
            except OSError:
                continue
        raise OSError("libshaderc not found")

    @staticmethod
    def _loaded() -> str:
        """Return the file that the loader took; nothing where the system does not say."""
        try:
            mapped = Path("/proc/self/maps").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.split(maxsplit=5)[5] for line in mapped if "/libshaderc" in line), "")


@functools.cache
def _shaderc() -> _Shaderc | None:
    try:
        return _Shaderc()
    except OSError:
        return None


def _compile_with_shaderc(shaderc: _Shaderc, source: str, defines: dict[str, str]) -> bytes:
    lib, ffi = shaderc.lib, shaderc.ffi
    options = lib.shaderc_compile_options_initialize()
    text = source.encode(errors="replace")
    compute_shader, vulkan, version_1_2, performance = 2, 0, (1 << 22) | (2 << 12), 2
    lib.shaderc_compile_options_set_target_env(options, vulkan, version_1_2)
    lib.shaderc_compile_options_set_optimization_level(options, performance)
    if _NAMED in source:  # names are stripped without this
        lib.shaderc_compile_options_set_generate_debug_info(options)
    for name, value in defines.items():
        key, worth = name.encode(errors="replace"), value.encode(errors="replace")
        lib.shaderc_compile_options_add_macro_definition(options, key, len(key), worth, len(worth))
    result = lib.shaderc_compile_into_spv(
        shaderc.compiler, text, len(text), compute_shader, b"kernel", b"main", options
    )
    try:
        if lib.shaderc_result_get_compilation_status(result) != 0:
            log = ffi.string(lib.shaderc_result_get_error_message(result)).decode("utf-8", "replace")
            raise _refused(source, log)
        size = lib.shaderc_result_get_length(result)
        return bytes(ffi.buffer(lib.shaderc_result_get_bytes(result), size))
    finally:
        lib.shaderc_result_release(result)
        lib.shaderc_compile_options_release(options)


def _refused(source: str, log: str) -> ShaderCompileError:
    """Return the error of a source; compilers say of one without a version that they want another profile."""
    versioned = re.search(r"^\s*#\s*version\b", source, re.MULTILINE)
    odd = re.search(r"[^\0-\x7f]", _COMMENT.sub("", source))
    return ShaderCompileError(
        "GLSL does not compile"
        + (f" (outside of comments it is ASCII; this has {odd[0]!r}, U+{ord(odd[0]):04X})" if odd else "")
        + (":" if versioned else " without a first line #version 450:"),
        log,
    )


def _compile_with_tool(path: str, tool: str, source: str, defines: dict[str, str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        text, binary = Path(folder, "kernel.comp"), Path(folder, "kernel.spv")
        text.write_bytes(source.encode(errors="replace"))
        flags = [f"-D{name}={value}".encode(errors="replace") for name, value in defines.items()]
        target = [f"--target-env={_TARGET}"] if tool == "glslc" else ["--target-env", _TARGET, "-V"]
        command: list[str | bytes | Path] = [path, *target, *flags, "-o", binary, text]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode != 0:  # compilers cut characters into bytes
            raise _refused(source, (done.stdout + done.stderr).decode(errors="replace"))
        return binary.read_bytes()
