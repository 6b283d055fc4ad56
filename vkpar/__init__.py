"""vkpar: the Vulkan GPUs that you already have, of any vendors, working as one rig.

Importing the package loads no Vulkan; the first call that lists or opens devices does.

What is imported here by a name that it keeps, and what :mod:`vkpar.ops` lists, is public.
"""

import typing as _typing

from vkpar import parallel as parallel
from vkpar import random as random
from vkpar._version import __version__ as __version__
from vkpar.arrays.array import Array as Array
from vkpar.arrays.array import copy as copy
from vkpar.arrays.host import HostArray as HostArray
from vkpar.arrays.interop import advice as _advice
from vkpar.comm import pairs as _pairs  # noqa: F401  (registers how arrays go from device to device)
from vkpar.comm.communicator import Communicator as Communicator
from vkpar.device import Device as Device
from vkpar.device import enumerate_devices as enumerate_devices
from vkpar.device import open_devices as open_devices
from vkpar.dtypes import DType as DType
from vkpar.dtypes import bfloat16 as bfloat16
from vkpar.errors import CommunicatorError as CommunicatorError
from vkpar.errors import DeviceLostError as DeviceLostError
from vkpar.errors import DLPackError as DLPackError
from vkpar.errors import IndexingError as IndexingError
from vkpar.errors import InvalidUsageError as InvalidUsageError
from vkpar.errors import OperandError as OperandError
from vkpar.errors import OutOfMemoryError as OutOfMemoryError
from vkpar.errors import ReadOnlyError as ReadOnlyError
from vkpar.errors import ShaderCompileError as ShaderCompileError
from vkpar.errors import UnsupportedError as UnsupportedError
from vkpar.errors import ValidationError as ValidationError
from vkpar.errors import VkparError as VkparError
from vkpar.errors import VulkanError as VulkanError
from vkpar.errors import WaitTimeoutError as WaitTimeoutError
from vkpar.errors import WeightsError as WeightsError
from vkpar.graph.capture import capture as capture
from vkpar.graph.graph import Graph as Graph
from vkpar.graph.stats import GraphStats as GraphStats
from vkpar.host import from_dlpack as from_dlpack
from vkpar.host import host_array as host_array
from vkpar.host import register_host as register_host
from vkpar.kernels.kernel import Kernel as Kernel
from vkpar.kernels.pieces import pieces as pieces
from vkpar.memory import MemoryPlan as MemoryPlan
from vkpar.memory import plan_memory as plan_memory
from vkpar.ops import *  # noqa: F403
from vkpar.ops.elementwise.front import elementwise as elementwise
from vkpar.timeouts import Waitable as _Waitable
from vkpar.tracing import trace as trace
from vkpar.vulkan.machine.physical import DeviceInfo as DeviceInfo
from vkpar.vulkan.memory.accounting import DeviceMemory as DeviceMemory
from vkpar.vulkan.memory.accounting import HeapMemory as HeapMemory

Work = _Waitable

if not _typing.TYPE_CHECKING:  # for type checkers, what is not imported above is not there
    __all__ = [
        name
        for name, value in globals().items()
        if value in (parallel, random) or not (name.startswith("_") or isinstance(value, type(_typing)))
    ]

    def __getattr__(name: str) -> _typing.NoReturn:
        """Say what to write for a name of NumPy or torch; what makes arrays is found on a device."""
        made = name in ("array", "asarray", "empty", "ones", "tensor", "zeros")
        advice = (
            f"; arrays are made on a device: device.{name if hasattr(Device, name) else 'array'}(...)"
            if made
            else _advice(name)
        )
        if name == "open_device":
            advice = "; vkpar.open_devices(selector)[0] opens one"
        raise AttributeError(f"module 'vkpar' has no attribute {name!r}{advice}", name=name)
