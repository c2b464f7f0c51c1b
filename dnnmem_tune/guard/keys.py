"""Canonical hyperparameters: equal configurations get one key, in every process and on every day.

A configuration is flattened to *leaves*: ``{"model": {"width": 64}, "lr": 1e-3}`` has the leaves
``model/width`` and ``lr``. Two configurations are equal when their leaves are, whatever the order
of the keys, and whether a number came as ``1``, ``1.0`` or a numpy scalar.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from pathlib import PurePath
from typing import Any, SupportsFloat, SupportsIndex

from dnnmem_tune.errors import UsageError

SEPARATOR = "/"
"""Between the names of nested parameters, as Ray Tune writes them."""

Leaf = bool | int | float | str | None
"""A canonical value. Text that stands for another type starts with a mark, see ``plain_value``."""

Leaves = tuple[tuple[str, Leaf], ...]
"""The leaves of a configuration, sorted by name."""


def plain_value(value: Any) -> Any:
    """Return ``value`` without the types of array libraries: what a build function would be called with.

    Args:
        value: A hyperparameter: a number, text, None, or a container of these.

    Returns:
        Python's own ``bool``, ``int``, ``float`` and ``str``; tuples become lists, mappings dictionaries.
        Classes and functions stay as they are.

    """
    if value is None or isinstance(value, bool | str | bytes):
        return value
    if isinstance(value, Enum | PurePath):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {key: plain_value(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain_value(item) for item in value]
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():  # numpy and torch scalars, numpy.bool
        return item()
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        return tolist()
    return value


def find_leaves(params: Mapping[str, Any]) -> Leaves:
    """Return the canonical leaves of a configuration.

    Args:
        params: Hyperparameters by name; mappings may nest.

    Raises:
        UsageError: If a value has no identity that another process would recognise.

    Example:
        >>> find_leaves({"width": 64.0, "lr": 0.1}) == find_leaves({"lr": 0.1, "width": 64})
        True

    """
    leaves: dict[str, Leaf] = {}
    _collect(params, "", leaves)
    return tuple(sorted(leaves.items()))


def key_of(leaves: Leaves) -> str:
    """Return a short text that is equal exactly for equal leaves."""
    text = json.dumps([[name, type(value).__name__, repr(value)] for name, value in leaves])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def take(params: Mapping[str, Any], path: str) -> tuple[Any, dict[str, Any]]:
    """Return the parameter at ``path`` and the configuration without it.

    Args:
        params: Hyperparameters by name.
        path: Name, or names joined by ``/``.

    Raises:
        UsageError: If the parameter is missing.

    Example:
        >>> take({"train": {"batch": 8, "lr": 0.1}}, "train/batch")
        (8, {'train': {'lr': 0.1}})

    """
    if path in params:
        return params[path], {name: value for name, value in params.items() if name != path}
    head, _, tail = path.partition(SEPARATOR)
    inner = params.get(head)
    if not tail or not isinstance(inner, Mapping):
        names = ", ".join(sorted(map(str, params))) or "none"
        raise UsageError(f"the parameter {path!r} is missing; received {names}")
    value, rest = take(inner, tail)
    return value, {**params, head: rest}


def put(params: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return ``params`` with the parameter at ``path`` set.

    Example:
        >>> put({"train": {"lr": 0.1}}, "train/batch", 8)
        {'train': {'lr': 0.1, 'batch': 8}}

    """
    head, _, tail = path.partition(SEPARATOR)
    inner = params.get(head)
    if tail and path not in params and isinstance(inner, Mapping):
        return {**params, head: put(inner, tail, value)}
    return {**params, path: value}


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with names such as ``model/width`` as nested mappings.

    Example:
        >>> nest({"model/width": 64, "lr": 0.1})
        {'model': {'width': 64}, 'lr': 0.1}

    """
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *folders, name = path.split(SEPARATOR)
        inner = tree
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[name] = value
    return tree


def batch_size_of(value: Any) -> int:
    """Return a batch size as a whole number.

    Raises:
        UsageError: If it is no whole number of at least 1.

    """
    number = plain_value(value)
    whole = not isinstance(number, bool) and isinstance(number, int | float) and math.isfinite(number)
    if not whole or number != int(number) or number < 1:
        raise UsageError(f"a batch size is a whole number of at least 1, got {value!r}")
    return int(number)


def _collect(params: Mapping[str, Any], prefix: str, leaves: dict[str, Leaf]) -> None:
    for name, value in params.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            _collect(value, path + SEPARATOR, leaves)
        else:
            leaves[path] = _canonical(value, path)


def _canonical(value: Any, path: str) -> Leaf:
    plain = plain_value(value)
    match plain:
        case None | bool():
            return plain
        case Enum():
            return f"!enum {type(plain).__module__}.{type(plain).__qualname__}.{plain.name}"
        case str():
            return plain if not plain.startswith("!") else "!" + plain
        case int() | float():
            return _canonical_number(plain)
        case PurePath():
            return f"!path {plain}"
        case bytes():
            return f"!bytes {plain.hex()}"
        case list():
            return "!list " + json.dumps([[type(item).__name__, item] for item in _items(plain, path)])
        case Mapping():
            return "!empty"
        case Set():
            return "!set " + json.dumps(sorted(str(item) for item in _items(list(plain), path)))
    return _named(plain, path)


def _named(value: Any, path: str) -> str:
    """Return text for a value that a name identifies: a class, a function, a data type."""
    name = getattr(value, "__qualname__", None)
    if name is not None and "<" not in name:
        return f"!object {getattr(value, '__module__', '')}.{name}"
    text = repr(value)
    if text.startswith(f"{type(value).__module__}."):  # torch.float16, torch.channels_last
        return f"!value {text}"
    if " at 0x" not in text and isinstance(value, SupportsFloat | SupportsIndex):
        return f"!value {type(value).__qualname__} {text}"
    raise UsageError(
        f"the parameter {path!r} holds {text}, which another process could not recognise; "
        "pass a number, text, a list of these, or a named class or function"
    )


def _canonical_number(number: int | float) -> Leaf:
    if isinstance(number, int):
        return int(number)
    if math.isnan(number):
        return "!nan"
    return int(number) if number.is_integer() else number


def _items(values: list[Any], path: str) -> list[Any]:
    leaves: list[Any] = []
    for index, value in enumerate(values):
        if isinstance(value, Mapping):
            leaves.append([list(leaf) for leaf in find_leaves(value)])
        else:
            leaves.append(_canonical(value, f"{path}[{index}]"))
    return leaves
