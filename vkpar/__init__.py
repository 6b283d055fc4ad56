"""vkpar: the Vulkan GPUs that you already have, of any vendors, working as one rig.

Importing the package loads no Vulkan; the first call that lists or opens devices does.
"""

from typing import TYPE_CHECKING, NoReturn

from vkpar import parallel, random
from vkpar._version import __version__ as __version__
from vkpar.arrays.array import Array, copy
from vkpar.arrays.host import HostArray
from vkpar.arrays.interop import advice as _advice
from vkpar.comm import pairs as _pairs  # noqa: F401  (registers how arrays go from device to device)
from vkpar.comm.communicator import Communicator
from vkpar.device import Device, enumerate_devices, open_devices
from vkpar.dtypes import DType, bfloat16
from vkpar.errors import (
    CommunicatorError,
    DeviceLostError,
    DLPackError,
    IndexingError,
    InvalidUsageError,
    OperandError,
    OutOfMemoryError,
    ReadOnlyError,
    ShaderCompileError,
    UnsupportedError,
    ValidationError,
    VkparError,
    VulkanError,
    WaitTimeoutError,
    WeightsError,
)
from vkpar.graph.capture import capture
from vkpar.graph.graph import Graph, GraphStats
from vkpar.host import from_dlpack, host_array, register_host
from vkpar.kernels.kernel import Kernel
from vkpar.kernels.pieces import pieces
from vkpar.memory import MemoryPlan, plan_memory
from vkpar.ops import (
    KVCache,
    Normed,
    Quantized,
    abs,
    add,
    arange,
    argmax,
    argmin,
    attention,
    broadcast_to,
    cast,
    concatenate,
    contiguous,
    cross_entropy,
    cross_entropy_grad,
    divide,
    equal,
    exp,
    full,
    gelu,
    greater,
    greater_equal,
    layer_norm,
    layer_norm_grad,
    less,
    less_equal,
    log,
    log_softmax,
    matmul,
    max,
    maximum,
    mean,
    min,
    minimum,
    multiply,
    negative,
    not_equal,
    pow,
    quantized,
    relu,
    rms_norm,
    rms_norm_grad,
    rope,
    rsqrt,
    sigmoid,
    silu,
    softmax,
    split,
    sqrt,
    stack,
    subtract,
    sum,
    swiglu,
    take,
    tanh,
    transpose,
    where,
)
from vkpar.ops.elementwise.front import elementwise
from vkpar.timeouts import Waitable as Work
from vkpar.tracing import trace
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.memory.accounting import DeviceMemory, HeapMemory

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
    "IndexingError",
    "InvalidUsageError",
    "KVCache",
    "Kernel",
    "MemoryPlan",
    "Normed",
    "OperandError",
    "OutOfMemoryError",
    "Quantized",
    "ReadOnlyError",
    "ShaderCompileError",
    "UnsupportedError",
    "ValidationError",
    "VkparError",
    "VulkanError",
    "WaitTimeoutError",
    "WeightsError",
    "Work",
    "abs",
    "add",
    "arange",
    "argmax",
    "argmin",
    "attention",
    "bfloat16",
    "broadcast_to",
    "capture",
    "cast",
    "concatenate",
    "contiguous",
    "copy",
    "cross_entropy",
    "cross_entropy_grad",
    "divide",
    "elementwise",
    "enumerate_devices",
    "equal",
    "exp",
    "from_dlpack",
    "full",
    "gelu",
    "greater",
    "greater_equal",
    "host_array",
    "layer_norm",
    "layer_norm_grad",
    "less",
    "less_equal",
    "log",
    "log_softmax",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "negative",
    "not_equal",
    "open_devices",
    "parallel",
    "pieces",
    "plan_memory",
    "pow",
    "quantized",
    "random",
    "register_host",
    "relu",
    "rms_norm",
    "rms_norm_grad",
    "rope",
    "rsqrt",
    "sigmoid",
    "silu",
    "softmax",
    "split",
    "sqrt",
    "stack",
    "subtract",
    "sum",
    "swiglu",
    "take",
    "tanh",
    "trace",
    "transpose",
    "where",
]

if not TYPE_CHECKING:  # for type checkers, what is not listed above is not there

    def __getattr__(name: str) -> NoReturn:
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
