"""The checks: one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from vkpar.doctor import conformance, devices, drivers, links, machine
from vkpar.doctor.findings import Finding

MACHINE, DRIVERS, DEVICES, KERNELS, RIG, PROCESSES = "machine", "drivers", "devices", "kernels", "rig", "processes"


@dataclass(frozen=True)
class Check:
    """A check.

    Attributes:
        name: of its lines.
        section: of the report.
        title: what it looks at, in words.
        limit: seconds after which it hangs.
        run: takes the child's :class:`~vkpar.doctor.place.Place` and what the section gives every check: nothing
            (machine), ``path`` and ``variable`` (drivers), ``index`` (devices and kernels), ``indices`` (rig). Those of
            processes run in no child, and take a :class:`~vkpar.doctor.links.Meeting` alone.
        apart: in a process of its own, though what was imported before serves it too.
    """

    name: str
    section: str
    title: str
    limit: float
    run: Callable[..., Iterable[Finding]]
    apart: bool = False


CHECKS: Final = (
    Check("loader", MACHINE, "the Vulkan loader and the validation layer", 20, machine.loader),
    Check("variables", MACHINE, "variables that hide drivers, are empty or misspelt", 10, machine.variables),
    Check("nodes", MACHINE, "device files and their permissions", 10, machine.nodes),
    Check("helper", MACHINE, "the C helper", 10, machine.helper),
    Check("compiler", MACHINE, "compilers of GLSL", 20, machine.compiler),
    Check("libcuda", MACHINE, "NVIDIA's driver library, for links between its cards", 20, machine.libcuda),
    Check("memlock", MACHINE, "how much memory may be locked", 10, machine.memlock),
    Check("cache", MACHINE, "the folder of tunings and compiled kernels", 20, machine.cache),
    Check("driver", DRIVERS, "a driver's manifest, library and devices", 20, drivers.driver, apart=True),
    Check("cards", DRIVERS, "cards that no driver shows", 10, drivers.cards),
    Check("devices", DRIVERS, "the devices that all drivers show", 60, devices.listed),
    Check("features", DEVICES, "features, limits and extensions", 20, devices.features),
    Check("memory", DEVICES, "arrays written, copied and read", 30, devices.memory),
    Check("timeline", DEVICES, "timeline semaphores", 20, devices.timeline),
    Check("import", DEVICES, "import of host memory", 30, devices.host_memory),
    *(Check(f.name, KERNELS, f.title, 120, conformance.checking(f)) for f in conformance.FAMILIES),
    Check("links", RIG, "data over every link", 60, links.links),
    *(Check(f"all_reduce {name}", RIG, "sums on every wire", 120, links.summing(name)) for name in links.ALGORITHMS),
    Check("replicas", RIG, "equal bits on all ranks, again and again", 60, links.replicas),
    Check("captured", RIG, "a captured step with sums", 60, links.captured),
    Check("moves over MPI", PROCESSES, "data from each rank to each", 60, links.moved),
    Check("sums over MPI", PROCESSES, "sums on every wire, equal bits everywhere", 60, links.summed_over_processes),
    Check("captured over MPI", PROCESSES, "a captured step with sums", 60, links.captured_over_processes),
)
BY_NAME: Final = {check.name: check for check in CHECKS}


def of(section: str) -> list[Check]:
    """Return the checks of a section."""
    return [check for check in CHECKS if check.section == section]
