"""What lives in this process alone: handles of drivers, threads, memory of devices; what is set once, and closed."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NoReturn, TypeVar

from vkpar.errors import OperandError, ReadOnlyError

_C = TypeVar("_C", bound="Closable")


class Listed:
    """Has a ``dir`` for users."""

    _internal = ""  # names that parts of the package have of each other

    __slots__ = ()

    def __dir__(self) -> list[str]:
        """Return the names that are for users."""
        internal = self._internal.split()
        return [name for name in super().__dir__() if name not in internal]


class Closable(Listed):
    """A context manager whose block ends with :meth:`close`."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Give back what it has; a second call does nothing."""

    def __enter__(self: _C) -> _C:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Unpickled(Listed):
    """Refuses to be pickled and copied deeply, in words of its own."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse.

        Raises:
            OperandError: always; it is a TypeError, as pickle's own are.
        """
        raise OperandError(
            f"a {type(self).__name__} lives in this process alone and cannot be pickled or copied: make one where it "
            "is needed, out of what can be, such as NumPy's arrays"
        )


class Fixed:
    """Public attributes are set once, by the constructor: another value would not reach what was made of the first."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and hasattr(self, name):
            raise ReadOnlyError(f"{type(self).__name__}.{name} cannot be set: make another one")
        super().__setattr__(name, value)
