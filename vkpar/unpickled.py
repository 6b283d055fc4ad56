"""What lives in this process alone: handles of drivers, threads, memory of devices."""

from __future__ import annotations

from typing import Any, NoReturn

from vkpar.errors import OperandError


class Unpickled:
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
