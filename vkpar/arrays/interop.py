"""What Python's numbers and other libraries see of an array on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from vkpar.arrays.shape import Shaped
from vkpar.errors import DLPackError, InvalidUsageError, OperandError

_NO_DLPACK = (
    "device memory of Vulkan has no DLPack device that others could use; "
    "hand over array.numpy(), or a vkpar.HostArray that the array was read into"
)

_REDUCTIONS = (
    "sum", "mean", "max", "min", "amax", "amin", "argmax", "argmin", "var", "std", "any", "all", "prod", "cumsum",
    "cumprod", "argsort",
)  # fmt: skip

# What to write in place of NumPy's functions: those of one array, of two, and others.
_OF_ONE = (
    "exp", "log", "negative", "sqrt", "tanh", "floor", "ceil", "round", "trunc", "sign", "square", "reciprocal", "sin",
    "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "log2", "log10", "log1p", "expm1", "exp2", "isnan",
    "isinf", "isfinite", "logical_not", "invert", "tril", "triu", "zeros_like", "ones_like", "empty_like",
)  # fmt: skip
_OF_TWO = (
    "add", "subtract", "multiply", "divide", "matmul", "maximum", "minimum", "equal", "not_equal", "less", "less_equal",
    "greater", "greater_equal", "arctan2", "hypot", "mod", "floor_divide", "bitwise_and", "bitwise_or", "bitwise_xor",
    "left_shift", "right_shift", "logical_and", "logical_or", "logical_xor",
)  # fmt: skip
_OURS = {
    **dict.fromkeys(_REDUCTIONS, "a.{}()"),
    **dict.fromkeys(_OF_ONE, "vkpar.{}(a)"),
    **dict.fromkeys(_OF_TWO, "vkpar.{}(a, b)"),
    "amax": "a.max()", "amin": "a.min()", "absolute": "vkpar.abs(a)", "power": "vkpar.pow(a, b)",
    "dot": "vkpar.matmul(a, b)", "clip": "vkpar.clip(a, low, high)", "remainder": "vkpar.mod(a, b)",
    "full_like": "vkpar.full_like(a, value)", "pad": "vkpar.pad(a, widths, mode)", "roll": "vkpar.roll(a, shift, axis)",
    "repeat": "vkpar.repeat(a, repeats, axis)", "tile": "vkpar.tile(a, repeats)", "flip": "vkpar.flip(a, axis)",
    "expand_dims": "vkpar.expand_dims(a, axis)",
    "where": "vkpar.where(c, a, b)", "take": "vkpar.take(a, indices, axis)", "split": "vkpar.split(a, sections, axis)",
    "concatenate": "vkpar.concatenate(arrays, axis)", "stack": "vkpar.stack(arrays, axis)",
    "broadcast_to": "a.broadcast_to(shape)", "transpose": "a.transpose(axes)", "reshape": "a.reshape(shape)",
    "sort": "vkpar.sort(a, axis)", "topk": "vkpar.topk(a, k, axis)", "linalg.norm": "vkpar.norm(a, ord, axis)",
    "norm": "vkpar.norm(a, ord, axis)", "logsumexp": "vkpar.logsumexp(a, axis)", "cpu": "a.numpy()",
    "half": 'a.astype("float16")',
    "float": 'a.astype("float32")', "permute": "a.transpose(axes)", "expand": "a.broadcast_to(shape)",
    "flatten": "a.ravel()", "ravel": "a.ravel()", "squeeze": "a.squeeze()", "copy": "a.copy()",
}  # fmt: skip


def advice(name: str) -> str:
    """Return what to write for a name of NumPy or torch that ``vkpar`` or its arrays lack, for the end of a message."""
    ours = _OURS.get(name, "").format(name)
    return f": write {ours}" if ours else ""


def _no_function(name: str, module: str | None = None) -> str:
    """Return what to write in place of a function of NumPy, or of its ``module``, that was given an array."""
    name = ".".join([*(module or "numpy").split(".")[1:], name])  # linalg.norm
    ours = _OURS.get(name, "").format(name)
    return (
        f"NumPy's {name} would download the array: "
        + (f"write {ours}, with arrays of one device, to compute there, or " if ours else "write ")
        + f"np.{name} of array.numpy() to compute on the host"
    )


class Interoperable(Shaped):
    """An array whose elements are read by :meth:`numpy`, and never without a word."""

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a copy of the elements on the host, once all work that writes them is done."""
        raise NotImplementedError

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say what to write for a method of NumPy's or torch's arrays."""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{advice(name)}", name=name, obj=self
            )

    # --- NumPy and DLPack ---

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return a copy for NumPy, by the rules of NumPy 2.

        Args:
            dtype: convert to it.
            copy: None and True alike make the one copy that a download is.

        Raises:
            ValueError: ``copy=False``, since the elements live on a device.
            TypeError: no NumPy dtype.
        """
        if copy is False:
            raise ValueError("an array on a device cannot be seen without a copy; use numpy()")
        wanted = self.dtype.numpy if dtype is None else np.dtype(dtype)
        return self.numpy().astype(wanted, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **how: Any) -> NoReturn:
        """Refuse: NumPy's functions would download the array without a word.

        Raises:
            OperandError: always; the message says what to write.
        """
        raise OperandError(_no_function(ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"))

    def __array_function__(self, function: Any, types: Any, arguments: tuple[Any, ...], how: dict[str, Any]) -> Any:
        """Refuse as :meth:`__array_ufunc__` does; ``np.shape``, ``np.ndim`` and ``np.size`` read nothing and work."""
        if function in (np.shape, np.ndim, np.size) and arguments[1:] == () and not how:
            return {np.shape: self.shape, np.ndim: self.ndim, np.size: self.size}[function]
        raise OperandError(_no_function(function.__name__, function.__module__))

    def __dlpack_device__(self) -> NoReturn:
        """Refuse: see :meth:`__dlpack__`."""
        raise DLPackError(_NO_DLPACK)

    def __dlpack__(self, **how: Any) -> NoReturn:
        """Refuse: what DLPack consumers could do with the memory of a Vulkan device is not defined.

        Raises:
            DLPackError: always; it is a BufferError, as the protocol asks. :meth:`numpy`, and a :class:`HostArray`
                that it is read into, can be handed over.
        """
        raise DLPackError(_NO_DLPACK)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled.

        Raises:
            OperandError: always; the message says what can be.
        """
        raise OperandError(
            "an array on a device cannot be pickled: pickle array.numpy(), and upload it where it is read"
        )

    # --- as a number ---

    def item(self) -> Any:
        """Return the only element as a Python number, once all work that writes it is done.

        Raises:
            InvalidUsageError: several elements, or none.
        """
        if self.size != 1:
            raise InvalidUsageError(f"an array {self.shape} is no single number; numpy() returns its {self.size}")
        return self.numpy().item()

    def tolist(self) -> Any:
        """Return the elements as Python's numbers, in lists of lists; of an array without dimensions the number."""
        return self.numpy().tolist()

    def __bool__(self) -> bool:
        """Return whether the only element is not zero; raises as :meth:`item` does."""
        if self.size != 1:
            raise InvalidUsageError(
                f"the truth of an array {self.shape} is ambiguous: write array.size, or array.numpy().any() or .all()"
            )
        return bool(self.item())

    def __float__(self) -> float:
        """Return the only element; raises as :meth:`item` does."""
        return float(self.item())

    def __int__(self) -> int:
        """Return the only element, rounded toward zero; raises as :meth:`item` does."""
        return int(self.item())

    def __format__(self, form: str) -> str:
        """Return the only element in a form (``f"{loss:.3f}"``), or ``str`` of the array without one."""
        return format(self.item(), form) if form else str(self)

    def __complex__(self) -> complex:
        """Return the only element; raises as :meth:`item` does."""
        return complex(self.item())
