"""Elementwise functions of the user's own."""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, overload

from vkpar.abi.elementwise import Specialized
from vkpar.arrays.array import Array
from vkpar.errors import InvalidUsageError
from vkpar.ops.call.checks import NARROW, widened
from vkpar.ops.elementwise.emit import typed
from vkpar.ops.elementwise.expressions import FLOATS, WEAK_FLOAT, WEAK_INT, Expression, parse
from vkpar.ops.elementwise.generate import source
from vkpar.ops.elementwise.kinds import INDEX, WORDS, KernelTypes
from vkpar.ops.elementwise.run import check_indexed, computed, run
from vkpar.ops.elementwise.ways import Meaning, Operand
from vkpar.unpickled import Fixed
from vkpar.vulkan.pipelines import shader

if TYPE_CHECKING:
    from vkpar.device import Device
    from vkpar.vulkan.pipelines.kernel import Pipeline


class Elementwise(Fixed):
    """A function of arrays by elements, made by :func:`elementwise`.

    Attributes:
        text: its expression.
        inputs: the names of its arrays and numbers, in the order in which the expression names them first.
        outputs: the names of its results, in order.
    """

    def __init__(self, text: str) -> None:
        self._expression: Expression = parse(text)
        self.text = text
        self.inputs = self._expression.inputs
        self.outputs = self._expression.outputs
        self._run = _Compiled(self._expression)

    def __repr__(self) -> str:
        return f"<vkpar.elementwise {self.text!r}>"

    @overload
    def __call__(self, *operands: Operand, out: Array | None = None, **named: Operand) -> Array: ...

    @overload
    def __call__(self, *operands: Operand, out: Sequence[Array | None], **named: Operand) -> tuple[Array, ...]: ...

    def __call__(
        self, *operands: Operand, out: Array | Sequence[Array | None] | None = None, **named: Operand
    ) -> Array | tuple[Array, ...]:
        """Return the results: an array, or a tuple of arrays where the expression has several outputs.

        Type checkers cannot read the expression: a tuple without ``out`` is an array to them, which unpacks alike.

        Args:
            operands: arrays for the inputs that no keyword names, in order.
            out: where the result goes; of several outputs a sequence of arrays, or None for new ones. It may be an
                input itself (in place), and share no other memory with one.
            named: inputs by name: arrays, or numbers, which take the type of what they meet as NumPy's do.

        Raises:
            InvalidUsageError: too few or too many inputs, shapes that do not fit, or a wrong ``out``.
            UnsupportedError: types that the expression does not compute; the message shows where.
            ShaderCompileError: the machine's compiler refuses the GLSL that was made, which is a defect of vkpar.
        """
        given = self._ordered(operands, named) if named or len(operands) != len(self.inputs) else operands
        outs = (out,) if isinstance(out, Array) else (None,) * len(self.outputs) if out is None else tuple(out)
        if len(outs) != len(self.outputs):
            raise InvalidUsageError(f"{self!r} has the outputs {', '.join(self.outputs)}; out has {len(outs)} arrays")
        made = run(self._run, given, outs)
        return made[0] if len(made) == 1 else tuple(made)

    def _ordered(self, operands: Sequence[Operand], named: dict[str, Operand]) -> list[Operand]:
        """Return all inputs in the order of :attr:`inputs`."""
        unknown = [name for name in named if name not in self.inputs]
        if unknown:
            raise InvalidUsageError(f"{self!r} has no input {unknown[0]!r}; it has {', '.join(self.inputs) or 'none'}")
        left = [name for name in self.inputs if name not in named]
        if len(left) != len(operands):
            raise InvalidUsageError(
                f"{self!r} needs {', '.join(left) or 'no more inputs'} beside those named; got {len(operands)}"
            )
        rest = dict(zip(left, operands, strict=True))
        return [named[name] if name in named else rest[name] for name in self.inputs]


def _taken_as(array: Array) -> str:
    """Return the type that elements are computed in: those of 8 and 16 bits in 32."""
    name = array.dtype.name
    return widened(array) if name in NARROW - {"bool"} else name


class _Compiled:
    """What runs an expression; see :class:`vkpar.ops.elementwise.ways.Operation`."""

    def __init__(self, expression: Expression) -> None:
        self.name = "elementwise"
        self.key: Hashable = ("elementwise", expression.text)
        self.outputs = len(expression.outputs)
        self._expression = expression
        self._held: weakref.WeakKeyDictionary[Device, dict[Any, Pipeline]] = weakref.WeakKeyDictionary()

    def meaning(self, operands: Sequence[Operand]) -> Meaning:
        """Return what a call means: the types of the arrays, numbers weak."""
        arrays = [operand.dtype.name for operand in operands if isinstance(operand, Array)]
        computed(self.name, *arrays)
        whole = any(dtype not in FLOATS for dtype in arrays)
        kinds = tuple(
            _taken_as(operand)
            if isinstance(operand, Array)
            else (WEAK_INT if whole and hasattr(operand, "__index__") else WEAK_FLOAT)
            for operand in operands
        )
        if self._expression.indexed:
            check_indexed(operands)
            kinds += (INDEX,)
        results = typed(self._expression, kinds).results
        types = tuple(
            operand.dtype.name if isinstance(operand, Array) else {WEAK_INT: "int32", WEAK_FLOAT: "float32"}[kind]
            for operand, kind in zip(operands, kinds, strict=False)
        )
        return Meaning(KernelTypes(kinds, results), types, results)

    def pipeline(self, device: Device, kind: KernelTypes, constants: Specialized, form: str) -> Pipeline:
        """Return a pipeline, compiled at the first call of its kind."""
        held = self._held.setdefault(device, {})
        key = (kind, form, constants)
        pipeline = held.get(key)
        if pipeline is None:
            name, spirv = _spirv(self._expression, kind, form)
            bindings = len(kind.bound) + len(kind.results)
            logical = device.logical
            pipeline = held[key] = logical.pipelines.lease(
                name,
                spirv,
                "main",
                bindings,
                4 * WORDS,
                (*constants.lying, *constants.types),
                pushes=logical.pushes(bindings),
                own=True,
            )
        return pipeline


@functools.lru_cache(maxsize=256)
def _spirv(expression: Expression, kind: KernelTypes, form: str) -> tuple[str, bytes]:
    spirv = shader.compile_glsl(source(typed(expression, kind.inputs), kind, form, precise=True))
    return hashlib.sha256(spirv).hexdigest(), spirv


def elementwise(text: str) -> Elementwise:
    """Return a function of arrays that computes an expression for each element, on the arrays' device.

    Such as::

        leaky = vkpar.elementwise("y = x if x > 0 else slope * x")
        y = leaky(x, slope=0.01)
        step = vkpar.elementwise("m2 = beta * m + g; w2 = w - lr * m2")
        step(m=m, g=g, w=w, beta=0.9, lr=0.1, out=(m, w))

    Each name is assigned once. Names on the left are outputs, which later assignments may use (unrounded), but for
    those that begin with ``_``, which are not stored. ``index`` is the number of the element, counted in C order,
    and takes the type of what it meets, as numbers do. All other names are inputs. Expressions are Python's:
    ``+ - * / // % **``, comparisons, ``and or not``, ``a if c else b``, ``& | ^ ~ << >>`` of integers, numbers,
    ``pi inf nan``, and functions: see docs/elementwise.md.

    Inputs are broadcast as NumPy broadcasts them. float32, float16 and bfloat16 are computed in float32 and rounded
    once; int32 and uint32 wrap. Results have the type that ``np.result_type`` gives the arrays that they are made of;
    comparisons give bool. It is compiled by the machine's GLSL compiler at the first call for each
    combination of types, and kept in ``VKPAR_CACHE_DIR``.

    Args:
        text: the assignments.

    Raises:
        InvalidUsageError: a text that is no such expression; the message shows where.

    Examples:
        >>> leaky = vkpar.elementwise("y = x if x > 0 else slope * x")
        >>> leaky(x=device.array([2.0, -2.0]), slope=0.5).tolist()
        [2.0, -1.0]
    """
    return Elementwise(text)
