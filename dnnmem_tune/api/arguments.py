"""What callers may pass, checked before anything is started."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dnnmem_tune.decisions.batch_size import MAX_BATCH_SIZE
from dnnmem_tune.errors import UsageError
from dnnmem_tune.units import parse_bytes

_PASSED_BY_POSITION = ("batch_size", "device")


def whole_number(value: object, name: str, *, maximum: int | None = None) -> int:
    """Return ``value`` as an ``int`` of at least 1; numpy's whole numbers are taken, True and 1.5 are not.

    Raises:
        UsageError: If it is no such number, or above ``maximum``.

    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise UsageError(f"{name} must be a whole number of at least 1, got {value!r}")
    number = int(value)
    if maximum is not None and number > maximum:
        raise UsageError(f"{name} must be at most {maximum}, got {number}")
    return number


def batch_size_of(value: object) -> int:
    """Return a batch size.

    Raises:
        UsageError: If it is no whole number from 1 to the longest axis that a kernel can index.

    """
    return whole_number(value, "batch_size", maximum=MAX_BATCH_SIZE)


def plain_params(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return hyperparameters as values that can travel to the process that runs the workload.

    Raises:
        UsageError: If a name is no argument name or is passed on its own, or a value is neither a finite
            number, a string, True, False, None, nor a list or dictionary of those.

    """
    if params is None:
        return {}
    if not isinstance(params, Mapping):
        raise UsageError(f"params must be a dictionary of hyperparameters, got {type(params).__name__}")
    for name in params:
        if not isinstance(name, str) or not name.isidentifier():
            raise UsageError(f"params: {name!r} cannot be the name of an argument of the workload")
        if name in _PASSED_BY_POSITION:
            raise UsageError(f"params must not hold {name!r}: the workload gets it as an argument of its own")
    return {name: _plain(value, f"params[{name!r}]") for name, value in params.items()}


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        if not math.isfinite(value):
            raise UsageError(f"{where} is {value!r}; pass a finite number")
        return float(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise UsageError(f"{where} has the key {key!r}; keys of a dictionary must be strings")
        return {key: _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    # numpy has a boolean of its own, which is no Python one.
    if type(value).__name__ in ("bool_", "bool") and hasattr(value, "item"):
        return bool(value)
    raise UsageError(
        f"{where} is a {type(value).__name__}; hyperparameters travel to another process: "
        "pass numbers, strings, True, False, None, or lists and dictionaries of those"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyMargin:
    """Device memory to leave unused: a number of bytes, and a share of the card."""

    nbytes: int = 0
    """Bytes."""

    fraction: float = 0.0
    """Of the card's memory; from 0 to below 1."""


def safety_margin(value: object) -> SafetyMargin:
    """Return the margin that ``value`` means.

    Args:
        value: A share of the card (``0.05``, ``"5%"``), a number of bytes (``512 << 20``), or a size
            (``"512MiB"``); None or 0 for no margin.

    Raises:
        UsageError: If it is none of these.

    Example:
        >>> safety_margin("5%"), safety_margin("512MiB").nbytes
        (SafetyMargin(nbytes=0, fraction=0.05), 536870912)

    """
    if value is None:
        return SafetyMargin()
    if isinstance(value, str):
        return _margin_in_words(value.strip())
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value) or value < 0:
        raise UsageError(_not_a_margin(value))
    if value < 1:
        return SafetyMargin(fraction=float(value))
    if not isinstance(value, numbers.Integral):
        raise UsageError(_not_a_margin(value))
    return SafetyMargin(nbytes=int(value))


def _margin_in_words(text: str) -> SafetyMargin:
    number = text.removesuffix("%")
    try:
        share = float(number)
    except ValueError:
        try:
            return SafetyMargin(nbytes=parse_bytes(text))
        except UsageError as error:
            raise UsageError(_not_a_margin(text)) from error
    if number != text:
        share /= 100
    elif share >= 1 and share.is_integer():
        return SafetyMargin(nbytes=int(share))
    if not 0 <= share < 1:
        raise UsageError(_not_a_margin(text))
    return SafetyMargin(fraction=share)


def _not_a_margin(value: object) -> str:
    return f"a safety margin is a share from 0 to below 1 (0.05 or '5%') or a size such as '512MiB', got {value!r}"
