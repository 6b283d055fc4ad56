"""Forms: all of an array that a kept call depends on; and what calls of a device are found again by."""

from __future__ import annotations

from typing import Any, Final, Protocol

from vkpar.arrays.layout import Strides
from vkpar.dtypes import DType
from vkpar.vulkan.machine.physical import ALIGNMENT

_MOST: Final = 4096  # plans, and forms, of a device


class Form:
    """All of an array that a plan depends on, made once per device, so that forms are compared by identity.

    Attributes:
        shape: the dimensions; ``dtype`` of the elements, ``nbytes`` of them all.
        steps: the strides, None for those of C order.
        low: the first byte that it reaches, counted from its first element; ``high`` the one after the last.
        turned: the form of its transpose, once one was made.
    """

    __slots__ = ("dtype", "high", "low", "nbytes", "shape", "steps", "turned")

    def __init__(
        self, shape: tuple[int, ...], dtype: DType, nbytes: int, steps: Strides | None, span: tuple[int, int]
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nbytes = nbytes
        self.steps = steps
        self.low, self.high = span
        self.turned: Form | None = None


class _Owner(Protocol):
    @property
    def plans(self) -> Plans: ...


class _Memory(Protocol):
    @property
    def nbytes(self) -> int: ...

    @property
    def device(self) -> _Owner: ...

    @property
    def guards(self) -> Any: ...


class _Array(Protocol):
    """What forms are made of, and kept in: arrays, which lie above; see :class:`vkpar.arrays.array.Array`."""

    form: Form | None
    byte_offset: int

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def steps(self) -> Strides | None: ...

    @property
    def span(self) -> tuple[int, int]: ...

    @property
    def storage(self) -> _Memory: ...


class Plans:
    """The forms of one device, and what :mod:`vkpar.ops.call`, which lies above, keeps by them.

    Attributes:
        known: the plans, each a :class:`vkpar.ops.call.plan.Plan`; ``recipes`` alike.
        tables: arrays of numbers that operations compute once, on the device.
    """

    def __init__(self) -> None:
        self._forms: dict[tuple[Any, ...], Form] = {}
        self.known: dict[tuple[Any, ...], Any] = {}
        self.recipes: dict[tuple[Any, ...], Any] = {}
        self.tables: dict[tuple[Any, ...], Any] = {}

    def form(self, array: _Array) -> Form:
        """Return the form of an array of the device."""
        start, nbytes = array.byte_offset, array.nbytes
        low, high = array.span
        storage = array.storage
        alike = start % ALIGNMENT, high == storage.nbytes, storage.guards is None
        key = (array.shape, array.dtype.name, *alike, array.steps)
        form = self._forms.get(key)
        if form is None:
            if len(self._forms) >= _MOST:  # arrays that are left have forms that no plan has
                self._forms.clear()
                self.known.clear()
                self.recipes.clear()
            form = self._forms.setdefault(
                key, Form(array.shape, array.dtype, nbytes, array.steps, (low - start, high - start))
            )
        array.form = form
        return form

    def keep(self, key: tuple[Any, ...], plan: Any) -> None:
        """Have later calls find ``plan``."""
        if len(self.known) >= _MOST:
            self.known.clear()
        self.known[key] = plan

    def keep_recipe(self, key: tuple[Any, ...], recipe: Any) -> None:
        """Have later calls find ``recipe``."""
        if len(self.recipes) >= _MOST:
            self.recipes.clear()
        self.recipes[key] = recipe


def form_of(array: _Array) -> Form:
    """Return the form of an array, that of its device."""
    return array.form or array.storage.device.plans.form(array)
