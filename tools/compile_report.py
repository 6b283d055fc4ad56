#!/usr/bin/env python3
"""Compile the built-in kernels for AMD cards that are not here, and report what the compiler made of them.

Mesa's driver for AMD cards, RADV, compiles for a card that ``RADV_FORCE_FAMILY`` names on a machine that has none; it
runs nothing. Of every pipeline it says how many registers it takes, how many it spilled to memory, how much shared
memory it has and how many subgroups a SIMD holds at once (VK_KHR_pipeline_executable_properties).

    tools/compile_report.py                       every family that the driver knows, as a table by source
    tools/compile_report.py --each                by kernel
    tools/compile_report.py --family navi21       one family; the option may be repeated
    tools/compile_report.py --variant wide        one variant of each kernel instead of all
    tools/compile_report.py --kernel '^matmul'    the kernels whose names match
    tools/compile_report.py --driver icd.json     another RADV than the installed one
    tools/compile_report.py --json                every pipeline, for programs

The exit status is 1 where a kernel does not compile or spills registers.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from kernel_variants import VARIANTS, Module, ReportError, modules  # noqa: E402

from vkpar.errors import VkparError  # noqa: E402

FAMILIES: Final = ("polaris10", "vega10", "navi10", "navi21", "navi31", "gfx1201")
_OLD_NAMES: Final = {"navi31": "gfx1100"}  # what Mesa before 23 calls a family
_UNKNOWN: Final = "Unknown family"
_FOLDERS: Final = ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d")
_STATISTICS: Final = {
    "sgprs": "SGPRs",
    "vgprs": "VGPRs",
    "spilled_sgprs": "Spilled SGPRs",
    "spilled_vgprs": "Spilled VGPRs",
    "shared": "LDS Size",
    "scratch": "Scratch size",
    "code": "Code size",
    "waves": "Subgroups per SIMD",
}
_PUSH_NBYTES: Final = 128
# Capabilities, and the flag of stages whose subgroups are full, which kernels with cooperative matrices ask for.
_COOPERATIVE, _DOTS, _FULL_SUBGROUPS = 6022, 6018, 2
_COOPERATIVE_NV, _BFLOAT16 = frozenset({5357, *range(5430, 5440)}), frozenset({5116, 5117, 5118})


@dataclass(frozen=True)
class Built:
    """A pipeline: registers of an invocation, bytes of shared and of private memory, subgroups that a SIMD holds."""

    kernel: str
    source: str
    variant: str
    constants: tuple[int, ...]
    sgprs: int
    vgprs: int
    spilled_sgprs: int
    spilled_vgprs: int
    shared: int
    scratch: int
    code: int
    waves: int

    @property
    def spills(self) -> bool:
        """True where registers had to be kept in memory."""
        return bool(self.spilled_sgprs or self.spilled_vgprs)


class Compiler:
    """A device that compiles and runs nothing: the one that the loader lists in this process.

    Raises:
        ReportError: there is another, or none; it cannot say what it made of pipelines.
    """

    def __init__(self) -> None:
        from vkpar.vulkan import api
        from vkpar.vulkan.machine import drivers, instance

        infos = drivers.enumerate_devices(null_hardware=True)
        if len(infos) != 1 or not infos[0].is_null_hardware:
            raise ReportError(f"expected null hardware alone, not {', '.join(info.name for info in infos)}")
        self.info = infos[0]
        if "VK_KHR_pipeline_executable_properties" not in self.info.extensions:
            raise ReportError(f"{self.info.name} lacks VK_KHR_pipeline_executable_properties")
        self._vk, self._instance = api.load(), instance.get()
        self._device = self._open()
        names = ("vkGetPipelineExecutableStatisticsKHR", "vkGetPipelineExecutablePropertiesKHR")
        self._statistics, self._executables = ((name, self._vk.device_function(self._device, name)) for name in names)

    def _open(self) -> Any:
        """Return a VkDevice with every feature that kernels may need."""
        vk, wanted = self._vk, ["VK_KHR_pipeline_executable_properties"]
        last = vk.struct("VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR")
        if "VK_KHR_cooperative_matrix" in self.info.extensions:
            wanted.append("VK_KHR_cooperative_matrix")
            last = vk.struct("VkPhysicalDeviceCooperativeMatrixFeaturesKHR", pNext=last)
        for number in (11, 12, 13):
            last = vk.struct(f"VkPhysicalDeviceVulkan{number}Features", pNext=last)
        features = vk.struct("VkPhysicalDeviceFeatures2", pNext=last)
        vk.lib.vkGetPhysicalDeviceFeatures2(self.info.handle, features)
        features.features.robustBufferAccess = 0  # vkpar does without; it changes what is compiled
        queue = vk.struct("VkDeviceQueueCreateInfo", queueCount=1, pQueuePriorities=[1.0])
        asked = vk.struct(
            "VkDeviceCreateInfo",
            pNext=features,
            queueCreateInfoCount=1,
            pQueueCreateInfos=[queue],
            enabledExtensionCount=len(wanted),
            ppEnabledExtensionNames=wanted,
        )
        return vk.create("Device", self.info.handle, asked)

    def lacks(self, module: Module) -> str:
        """Return what a card of this family has not and the kernel needs, nothing where it has all."""
        if module.capabilities & _COOPERATIVE_NV:
            return "NVIDIA's cooperative matrices"
        if _DOTS in module.capabilities and not self.info.features.integer_dot_fast:
            return "instructions that multiply four bytes at once"
        if module.capabilities & _BFLOAT16 and "VK_KHR_shader_bfloat16" not in self.info.extensions:
            return "bfloat16 in shaders"
        matrices = _COOPERATIVE not in module.capabilities or self.info.features.cooperative_matrix
        return "" if matrices else "cooperative matrices"

    def build(self, module: Module, variant: str) -> Built:
        """Make a pipeline and return what the compiler says of it.

        Raises:
            VulkanError: it does not compile.
        """
        vk, constants = self._vk, module.values(variant)
        with ExitStack() as stack:

            def made(kind: str, info: Any) -> Any:
                handle = vk.create(kind, self._device, info)
                stack.callback(vk.destroy, kind, self._device, handle)
                return handle

            layout = self._layout(module, made)
            code = vk.ffi.new("uint32_t[]", len(module.spirv) // 4)
            vk.ffi.memmove(code, module.spirv, len(module.spirv))
            shader = made("ShaderModule", vk.struct("VkShaderModuleCreateInfo", codeSize=len(module.spirv), pCode=code))
            entries = [
                vk.struct("VkSpecializationMapEntry", constantID=number, offset=4 * number, size=4)
                for number in range(len(constants))
            ]
            given = vk.struct(
                "VkSpecializationInfo",
                mapEntryCount=len(entries),
                pMapEntries=entries,
                dataSize=4 * len(constants),
                pData=struct.pack(f"<{len(constants)}i", *constants),
            )
            stage = vk.struct(
                "VkPipelineShaderStageCreateInfo",
                flags=_FULL_SUBGROUPS if _COOPERATIVE in module.capabilities else 0,
                stage=vk.vk.VK_SHADER_STAGE_COMPUTE_BIT,
                module=shader,
                pName="main",
                pSpecializationInfo=given,
            )
            flags = vk.vk.VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR
            info = vk.struct("VkComputePipelineCreateInfo", flags=flags, stage=stage[0], layout=layout)
            making = vk.making("Pipeline", self._device)
            pipeline = vk.make(making, "vkCreateComputePipelines", self._device, vk.ffi.NULL, 1, info, vk.ffi.NULL)
            stack.callback(vk.destroy, "Pipeline", self._device, pipeline)
            return Built(module.name, module.source, variant, constants, **self._read(pipeline))

    def _layout(self, module: Module, made: Callable[[str, Any], Any]) -> Any:
        vk, stage = self._vk, self._vk.vk.VK_SHADER_STAGE_COMPUTE_BIT
        kinds = (vk.vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, vk.vk.VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER)
        entries = [
            vk.struct(
                "VkDescriptorSetLayoutBinding",
                binding=number,
                descriptorType=kinds[texel],
                descriptorCount=1,
                stageFlags=stage,
            )
            for number, texel in sorted(module.bindings.items())
        ]
        info = vk.struct("VkDescriptorSetLayoutCreateInfo", bindingCount=len(entries), pBindings=entries)
        sets = made("DescriptorSetLayout", info)
        push = [vk.struct("VkPushConstantRange", stageFlags=stage, size=_PUSH_NBYTES)]
        info = vk.struct(
            "VkPipelineLayoutCreateInfo",
            setLayoutCount=1,
            pSetLayouts=[sets],
            pushConstantRangeCount=1,
            pPushConstantRanges=push,
        )
        return made("PipelineLayout", info)

    def _read(self, pipeline: Any) -> dict[str, int]:
        """Return the members of :class:`Built` that the driver knows."""
        vk, found = self._vk, {}
        pipeline_info = vk.struct("VkPipelineInfoKHR", pipeline=pipeline)
        name, function = self._executables
        stages = vk.enumerate(
            "VkPipelineExecutablePropertiesKHR", name, self._device, pipeline_info, function=function, chained=True
        )
        if len(stages) != 1:
            raise ReportError(f"{self.info.name}: a compute pipeline of {len(stages)} executables")
        info = vk.struct("VkPipelineExecutableInfoKHR", pipeline=pipeline)
        name, function = self._statistics
        for item in vk.enumerate(
            "VkPipelineExecutableStatisticKHR", name, self._device, info, function=function, chained=True
        ):
            found[vk.text(item.name).lower()] = int(item.value.u64)
        try:
            return {member: found[name.lower()] for member, name in _STATISTICS.items()}
        except KeyError as error:
            raise ReportError(f"{self.info.name} does not say {error}; it says {', '.join(found)}") from error

    def close(self) -> None:
        """Destroy the device."""
        self._vk.destroy("Device", None, self._device)


def compile_all(arguments: argparse.Namespace) -> int:
    """Build what is asked for on the null hardware of this process; print a JSON line of each pipeline."""
    compiler = Compiler()
    print(json.dumps({"device": compiler.info.name, "driver": compiler.info.driver_info}))
    for module in modules(arguments.kernel):
        lacking = compiler.lacks(module)
        if lacking:
            print(json.dumps({"kernel": module.name, "left": lacking}))
            continue
        seen: set[tuple[int, ...]] = set()
        for variant in arguments.variant:
            if module.values(variant) in seen:
                continue
            seen.add(module.values(variant))
            try:
                built = compiler.build(module, variant)
            except VkparError as error:
                print(json.dumps({"kernel": module.name, "variant": variant, "error": str(error)}))
                continue
            print(json.dumps(asdict(built)))
    compiler.close()
    return 0


@dataclass(frozen=True)
class Report:
    """What the compiler made of the kernels for one family."""

    family: str
    device: str
    driver: str
    built: tuple[Built, ...]
    left: dict[str, str]
    errors: tuple[str, ...]

    @property
    def faults(self) -> list[str]:
        """What may not be: kernels that do not compile, and registers in memory."""
        spilled = [
            f"{each.kernel} ({each.variant}): spilled {each.spilled_vgprs} VGPRs, {each.spilled_sgprs} SGPRs"
            for each in self.built
            if each.spills
        ]
        return [*self.errors, *spilled]


def installed_driver() -> Path | None:
    """Return the file that names the installed RADV to the loader, None where there is none."""
    for folder in _FOLDERS:
        for path in sorted(Path(folder).glob("radeon_icd*.json")):
            return path
    return None


def report(family: str, driver: Path, variants: Sequence[str] = VARIANTS, kernel: str = "") -> Report | None:
    """Compile for one family, in a process that has that driver alone; None where the driver does not know it.

    Args:
        family: one of :data:`FAMILIES`.
        driver: the file that names RADV to the loader.
        variants: some of :data:`VARIANTS`.
        kernel: a pattern that the names of the kernels match.

    Raises:
        ReportError: the process failed.
    """
    command = [sys.executable, __file__, "--here", "--kernel", kernel]
    command += [word for variant in variants for word in ("--variant", variant)]
    for name in dict.fromkeys((family, _OLD_NAMES.get(family, family))):
        done = subprocess.run(command, env=_environment(name, driver), capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return _parsed(family, done.stdout)
        if _UNKNOWN not in done.stderr:
            raise ReportError(f"{family}, {driver}: status {done.returncode}\n{done.stderr.strip()}")
    return None


def _environment(family: str, driver: Path) -> dict[str, str]:
    """Return the environment of one family: no other driver, nothing that changes or keeps what it compiles."""
    dropped = ("VK_ADD_DRIVER_FILES", "VK_INSTANCE_LAYERS", "VK_LOADER_LAYERS_ENABLE")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and not name.startswith(("RADV_", "ACO_", "VKPAR_", "VK_LOADER_DRIVERS_"))
    }
    files = str(driver.resolve())
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return kept | {
        "RADV_FORCE_FAMILY": family,
        "VK_DRIVER_FILES": files,
        "VK_ICD_FILENAMES": files,  # the same for loaders before 1.3.207
        "MESA_SHADER_CACHE_DISABLE": "true",
        "PYTHONPATH": path,
    }


def _parsed(family: str, printed: str) -> Report:
    first, *lines = (json.loads(line) for line in printed.splitlines())
    built = tuple(Built(**{**line, "constants": tuple(line["constants"])}) for line in lines if "vgprs" in line)
    left = {line["kernel"]: line["left"] for line in lines if "left" in line}
    errors = tuple(f"{line['kernel']} ({line['variant']}): {line['error']}" for line in lines if "error" in line)
    return Report(family, first["device"], first["driver"], built, left, errors)


def table(reports: Sequence[Report], *, each: bool = False) -> str:
    """Return reports as one table in Markdown.

    Args:
        reports: of families.
        each: a row has one kernel, in place of all of a source.
    """
    cells: dict[str, dict[str, list[Built]]] = {}
    for found in reports:
        for built in found.built:
            row = cells.setdefault(built.kernel if each else built.source, {})
            row.setdefault(found.family, []).append(built)
    families = [found.family for found in reports]
    lines = [f"| kernel | pipelines | shared memory | {' | '.join(families)} |"]
    lines.append("| --- | ---: | ---: |" + " ---: |" * len(families))
    for name, row in cells.items():
        every = [built for members in row.values() for built in members]
        shared = max(built.shared for built in every)
        most = " | ".join(_most(row.get(family, ())) for family in families)
        lines.append(f"| {name} | {max(map(len, row.values()))} | {shared} | {most} |")
    return "\n".join(lines)


def _most(members: Sequence[Built]) -> str:
    """Return the most registers that one of some pipelines takes, and the fewest subgroups that a SIMD holds of one."""
    if not members:
        return "-"
    scratch = max(built.scratch for built in members)
    vgprs, sgprs, waves = (
        choose(getattr(built, name) for built in members)
        for choose, name in ((max, "vgprs"), (max, "sgprs"), (min, "waves"))
    )
    return f"{vgprs}+{sgprs}, {waves}" + (f", {scratch} B scratch" if scratch else "")


def notes(found: Report) -> list[str]:
    """Return what is to be said of a family besides the table's numbers."""
    kernels = len({built.kernel for built in found.built})
    lines = [f"{found.family}: {found.device}, {found.driver}, {len(found.built)} pipelines of {kernels} kernels"]
    why: dict[str, list[str]] = {}
    for kernel, lacking in found.left.items():
        why.setdefault(lacking, []).append(kernel)
    lines += [f"  not built, since the card has no {lacking}: {', '.join(names)}" for lacking, names in why.items()]
    return lines + [f"  FAULT: {fault}" for fault in found.faults]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument("--variant", action="append", choices=VARIANTS)
    parser.add_argument("--kernel", default="", metavar="PATTERN")
    parser.add_argument("--driver", type=Path, metavar="ICD.json")
    parser.add_argument("--each", action="store_true", help="a row for each kernel, not for each source")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in the process that has the driver
    given = parser.parse_args(arguments)
    given.variant = given.variant or list(VARIANTS)
    try:
        return compile_all(given) if given.here else _print(given)
    except (ReportError, VkparError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _print(given: argparse.Namespace) -> int:
    driver = given.driver or installed_driver()
    if driver is None:
        raise ReportError("there is no RADV here: install mesa-vulkan-drivers, or name its file with --driver")
    made = []
    for family in given.family or FAMILIES:
        found = report(family, driver, given.variant, given.kernel)
        if found is not None:
            made.append(found)
        elif given.family:
            raise ReportError(f"{driver} does not know {family}")
    if not made:
        raise ReportError(f"{driver} knows none of {', '.join(FAMILIES)}")
    if given.json:
        print(json.dumps([{**asdict(found), "faults": found.faults} for found in made], indent=1))
        return int(any(found.faults for found in made))
    print(table(made, each=given.each))
    print("\nregisters of an invocation (vector + scalar), then subgroups that a SIMD holds at once\n")
    print("\n".join(line for found in made for line in notes(found)))
    return int(any(found.faults for found in made))


if __name__ == "__main__":
    sys.exit(main())
