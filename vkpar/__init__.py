"""vkpar: the Vulkan GPUs that you already have, of any vendors, working as one rig.

Importing the package loads no Vulkan; the first call that lists or opens devices does.
"""

from vkpar._version import __version__ as __version__
from vkpar.arrays.array import Array, copy
from vkpar.arrays.host import HostArray
from vkpar.comm import pairs as _pairs  # noqa: F401  (registers how arrays go from device to device)
from vkpar.comm.communicator import Communicator
from vkpar.comm.engine.work import Work
from vkpar.device import Device, enumerate_devices, open_devices
from vkpar.dtypes import DType, bfloat16
from vkpar.errors import (
    CommunicatorError,
    DeviceLostError,
    DLPackError,
    InvalidUsageError,
    OperandError,
    OutOfMemoryError,
    ShaderCompileError,
    UnsupportedError,
    ValidationError,
    VkparError,
    VulkanError,
    WaitTimeoutError,
)
from vkpar.graph.capture import capture
from vkpar.graph.graph import Graph, GraphStats
from vkpar.host import from_dlpack, host_array, register_host
from vkpar.kernel import Kernel
from vkpar.memory import MemoryPlan, plan_memory
from vkpar.ops import (
    add,
    argmax,
    argmin,
    broadcast_to,
    cast,
    cross_entropy,
    cross_entropy_grad,
    layer_norm,
    layer_norm_grad,
    log_softmax,
    matmul,
    max,
    mean,
    min,
    rms_norm,
    rms_norm_grad,
    softmax,
    sum,
    swiglu,
    transpose,
)
from vkpar.pieces import pieces
from vkpar.vulkan.memory.accounting import DeviceMemory, HeapMemory
from vkpar.vulkan.physical import DeviceInfo

__all__ = [
    "Array",
    "Communicator",
    "CommunicatorError",
    "DLPackError",
    "DType",
    "Device",
    "DeviceInfo",
    "DeviceLostError",
    "DeviceMemory",
    "Graph",
    "GraphStats",
    "HeapMemory",
    "HostArray",
    "InvalidUsageError",
    "Kernel",
    "MemoryPlan",
    "OperandError",
    "OutOfMemoryError",
    "ShaderCompileError",
    "UnsupportedError",
    "ValidationError",
    "VkparError",
    "VulkanError",
    "WaitTimeoutError",
    "Work",
    "add",
    "argmax",
    "argmin",
    "bfloat16",
    "broadcast_to",
    "capture",
    "cast",
    "copy",
    "cross_entropy",
    "cross_entropy_grad",
    "enumerate_devices",
    "from_dlpack",
    "host_array",
    "layer_norm",
    "layer_norm_grad",
    "log_softmax",
    "matmul",
    "max",
    "mean",
    "min",
    "open_devices",
    "pieces",
    "plan_memory",
    "register_host",
    "rms_norm",
    "rms_norm_grad",
    "softmax",
    "sum",
    "swiglu",
    "transpose",
]
