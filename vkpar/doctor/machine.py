"""What the machine offers before any driver is loaded: loader, variables, device files, helpers, limits, folders."""

from __future__ import annotations

import ctypes
import errno
import getpass
import grp
import os
import resource
import shutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from vkpar import cachedir, env, text
from vkpar.doctor.findings import FAILED, OK, SKIPPED, Finding
from vkpar.errors import VkparError
from vkpar.vulkan import api
from vkpar.vulkan.machine import instance, manifests
from vkpar.vulkan.pipelines import shader
from vkpar.vulkan.pump import native

DEV: Final = Path("/dev")
DRM: Final = Path("/sys/class/drm")
# Variables of the loader and of drivers that hide devices or put others first.
_HIDING: Final = (
    *("VK_LOADER_DRIVERS_SELECT", "VK_LOADER_DRIVERS_DISABLE", "VK_LOADER_LAYERS_DISABLE", "VK_INSTANCE_LAYERS"),
    *("MESA_VK_DEVICE_SELECT", "NODEVICE_SELECT", "DRI_PRIME", "RADV_FORCE_FAMILY", "NVIDIA_VISIBLE_DEVICES"),
    *("NVIDIA_DRIVER_CAPABILITIES", "CUDA_VISIBLE_DEVICES", "AMD_VULKAN_ICD", "VK_LOADER_DEVICE_SELECT"),
)
_LEAST_MEMLOCK: Final = 1 << 20  # bytes: kernels before 5.16 gave 64 KiB, in which no staging memory fits
_PROBE: Final = "doctor"


def loader(_: Any) -> Iterator[Finding]:
    """Check that there is a loader; tell its version and that of the validation layer."""
    try:
        version = api.dotted(instance.loader_version())
    except VkparError as error:
        yield Finding.of(
            FAILED, str(error), "install the Vulkan loader: apt install libvulkan1, dnf install vulkan-loader"
        )
        return
    layer = instance.validation_layer_version()
    validation = (
        f"validation layer {api.dotted(layer)}" if layer else "no validation layer (only VKPAR_VALIDATION uses it)"
    )
    yield Finding.of(OK, f"Vulkan loader {version}, {validation}", version=version)


def variables(_: Any) -> Iterator[Finding]:
    """Check the variables of vkpar and of the loader; tell those that hide devices."""
    wrong = [*_misspelt(), *_bad_values(), *_empty()]
    yield from wrong
    told = [name for name in (*manifests.REPLACING, manifests.ADDING, *_HIDING) if os.environ.get(name)]
    own = [
        entry.metadata["variable"] for entry in fields(env.Environment) if os.environ.get(entry.metadata["variable"])
    ]
    if not wrong:
        found = "; ".join(f"{name}={os.environ[name]}" for name in (*told, *own)) or "none set that matters"
        yield Finding.of(OK, found)


def _misspelt() -> Iterator[Finding]:
    for name, hint in env.unknown():
        yield Finding.of(FAILED, f"{name} is none of vkpar's variables, and has no effect", hint, name)


def _bad_values() -> Iterator[Finding]:
    try:
        env.get()
    except VkparError as error:
        yield Finding.of(FAILED, str(error), "correct or unset it; 'vkpar env' says what each variable takes")


def _empty() -> Iterator[Finding]:
    variable = manifests.replacing()
    if variable and not os.environ[variable].strip(os.pathsep + " "):
        found = f"{variable} is set and empty: the loader takes no driver at all, and lists no device"
        yield Finding.of(FAILED, found, f"unset {variable}", variable)
    variable = variable or manifests.ADDING
    for path in os.environ.get(variable, "").split(os.pathsep):
        if path and os.path.isdir(path) and not any(name.endswith(".json") for name in os.listdir(path)):
            fix = f"name a driver's manifest, a file of JSON, in {variable}"
            yield Finding.of(FAILED, f"{variable} names {path}, a folder without manifests", fix, variable)


def nodes(_: Any) -> Iterator[Finding]:
    """Check that the device files of cards can be opened."""
    found = [*sorted(DEV.glob("dri/renderD*")), *sorted(DEV.glob("nvidia[0-9]*")), *DEV.glob("nvidiactl")]
    found += DEV.glob("dxg")
    closed = [node for node in found if not (os.access(node, os.R_OK | os.W_OK) or _unused(node))]
    for node in closed:
        yield _closed(node)
    if not found:
        yield Finding.of(SKIPPED, f"no {DEV}/dri/renderD*, no {DEV}/nvidia*: no card is handed to this system")
    elif not closed:
        yield Finding.of(OK, f"{', '.join(map(str, found))}: may be read and written")


def _unused(node: Path) -> bool:
    """Say whether a node is of NVIDIA's driver, which has files of its own and computes without this one."""
    driver = DRM / node.name / "device" / "driver"
    return driver.is_symlink() and os.path.basename(os.readlink(driver)) == "nvidia"


def _closed(node: Path) -> Finding:
    status = node.stat()
    try:
        group = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        group = str(status.st_gid)
    found = f"{node} may not be opened: mode {status.st_mode & 0o777:o}, group {group}"
    if status.st_mode & 0o060 == 0o060 and status.st_gid not in os.getgroups():
        fix = f"sudo usermod -aG {group} {_user()}, then log in again; in a container: --group-add {status.st_gid}"
    else:
        fix = f"let its group open it: sudo chmod g+rw {node}, or see the udev rules of the driver"
    return Finding.of(FAILED, found, fix, str(node), node=str(node))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return str(os.getuid())


def helper(_: Any) -> Iterator[Finding]:
    """Check that the C helper loads."""
    try:
        yield Finding.of(OK, str(native.helper().__file__))
    except VkparError as error:
        yield Finding.of(
            FAILED, str(error), "reinstall vkpar; from source, with a C compiler and Python's headers there"
        )


def compiler(_: Any) -> Iterator[Finding]:
    """Check the compiler of GLSL with a kernel."""
    name = shader.compiler()
    if name is None:
        found = "no libshaderc, glslc or glslangValidator, which your own GLSL needs; vkpar's kernels are compiled"
        yield Finding.of(SKIPPED, found, "apt install glslang-tools")
        return
    try:
        shader.compile_glsl("#version 450\nlayout(local_size_x = 1) in;\nvoid main() {}\n")
    except VkparError as error:
        yield Finding.of(FAILED, f"{name}: {error}", "install another: apt install glslang-tools")
    else:
        yield Finding.of(OK, f"{name} compiles GLSL")


def libcuda(_: Any) -> Iterator[Finding]:
    """Check that NVIDIA's driver library loads where there is an NVIDIA card."""
    cards = sorted(DEV.glob("nvidia[0-9]*"))
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        if cards:
            fix = "install the driver's libraries (libnvidia-compute); in a container: NVIDIA_DRIVER_CAPABILITIES=all"
            yield Finding.of(FAILED, f"there is {cards[0]}, and no libcuda: {error}", fix)
        else:
            yield Finding.of(SKIPPED, "no NVIDIA card")
        return
    version = ctypes.c_int()
    status = library.cuDriverGetVersion(ctypes.byref(version))
    if status:
        yield Finding.of(FAILED, f"libcuda does not tell its version (CUresult {status})", "reinstall NVIDIA's driver")
    else:
        yield Finding.of(OK, f"libcuda for CUDA {version.value // 1000}.{version.value % 1000 // 10}")


def memlock(_: Any) -> Iterator[Finding]:
    """Check how much memory may be locked, which some drivers count imported memory as."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY:
        yield Finding.of(OK, "unlimited")
    elif limit < _LEAST_MEMLOCK:
        found = f"{text.units(limit)} may be locked (ulimit -l): some drivers refuse to import staging memory over it"
        fix = "ulimit -l unlimited, 'memlock unlimited' in /etc/security/limits.conf, or docker run --ulimit memlock=-1"
        yield Finding.of(FAILED, found, fix)
    else:
        yield Finding.of(OK, f"{text.units(limit)} may be locked")


def cache(_: Any) -> Iterator[Finding]:
    """Check that the folder of tunings and compiled kernels takes a file and gives it back."""
    where = cachedir.directory()
    if where is None:
        yield Finding.of(
            FAILED, "there is no home folder, hence none for tunings and kernels", "name one in VKPAR_CACHE_DIR"
        )
        return
    fix = f"make {where} yours and writable (mode 700), or name another folder in VKPAR_CACHE_DIR"
    try:
        content = os.urandom(16)
        made = cachedir.write(_PROBE, content)
        if made is None:
            yield Finding.of(FAILED, f"{where} is not used: another user can write it", fix)
            return
        same = cachedir.read(_PROBE) == content
        made.unlink(missing_ok=True)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        found = f"{where} is {'full' if full else 'not to be written'}: {error.strerror or error}"
        fix = f"free some space, or {fix.partition(', or ')[2]}" if full else fix
        yield Finding.of(FAILED, f"{found}; tunings and kernels are made anew in every process", fix)
        return
    if not same:
        yield Finding.of(FAILED, f"{where} does not give back what is written to it", fix)
        return
    yield Finding.of(OK, f"{where}, {text.units(shutil.disk_usage(where).free)} free")
