"""Values of configurations, checked."""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as shown
from typing import Any

from vkpar.errors import InvalidUsageError, UnsupportedError

Scaling = float | Mapping[str, float] | tuple[float, ...] | None


def get(found: Mapping[str, Any], name: str, kind: type[Any], where: str, default: Any = None) -> Any:
    """Return a value of a type; a whole number will do for a float."""
    value = found.get(name, default)
    if value is None:
        raise InvalidUsageError(f"{where} has no {name}")
    wrong = isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind)
    if wrong:
        raise InvalidUsageError(f"{where}: {name} is {kind.__name__}, not {shown(value)}")
    try:
        return kind(value)
    except OverflowError:
        raise InvalidUsageError(f"{where}: {name} is beyond the range of a float") from None


def scaling_of(found: object, where: str) -> Scaling:
    """Return what stretches the rotary embedding, as :func:`vkpar.rope` takes it."""
    if not found:
        return None
    if not isinstance(found, Mapping):
        raise InvalidUsageError(f"{where}: rope_scaling is an object, not {found!r}")
    kind = found.get("rope_type", found.get("type", "default"))
    if kind in ("default", "none"):
        return None
    if kind == "linear":
        return float(get(found, "factor", float, where))
    if kind != "llama3":
        raise UnsupportedError(f"{where}: rope scaling {kind!r} is not supported; linear and llama3 are")
    names = {name: name for name in ("factor", "low_freq_factor", "high_freq_factor")}
    names["original_context"] = "original_max_position_embeddings"
    return {ours: get(found, theirs, float, where) for ours, theirs in names.items()}
