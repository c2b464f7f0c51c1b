"""A search space in a file, as ``dnnmem space`` reads it.

For instance::

    workload = "train.py:build"          # optional, as everything above [space]
    gpu = "V100-16GB"
    batch_param = "batch_size"

    [params]                             # the same in every trial
    precision = "bf16"

    [space]
    batch_size = { low = 128, high = 2048, step = 128 }
    lr = { low = 1e-5, high = 1e-1, log = true }
    heads = [4, 6, 8]
    "model/width" = { low = 16, high = 512, step = 16 }
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dnnmem_tune.decisions.space import Choices, Numbers, Parameter, SearchSpace
from dnnmem_tune.errors import UsageError

_KEYS = ("workload", "gpu", "batch_param", "params", "space")
_RANGE_KEYS = ("low", "high", "step", "log")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceFile:
    """What a file holds."""

    space: SearchSpace

    workload: str | None

    gpu: str | None


def read_space(path: Path) -> SpaceFile:
    """Return the search space of a TOML file.

    Raises:
        UsageError: If the file cannot be read, is no TOML, or a value is not right; the message names it.

    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the search space {path} cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML: {error}") from error
    try:
        return parse_space(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def parse_space(document: Mapping[str, Any]) -> SpaceFile:
    """Return the search space of a document; see the head of this module.

    Raises:
        UsageError: If a value is not right.

    """
    unknown = [name for name in document if name not in _KEYS]
    if unknown:
        raise UsageError(f"unknown key {unknown[0]!r}; known are {', '.join(_KEYS)}")
    parameters = document.get("space")
    if not isinstance(parameters, Mapping) or not parameters:
        raise UsageError("there is no table [space] with the parameters that are searched")
    space = SearchSpace(
        parameters={name: _parameter(name, value) for name, value in parameters.items()},
        constants=document.get("params", {}),
        batch_param=document.get("batch_param", "batch_size"),
    )
    _ = space.batch  # A space without a batch size is refused here.
    return SpaceFile(space=space, workload=document.get("workload"), gpu=document.get("gpu"))


def write_space(space: SearchSpace) -> str:
    """Return the text of a file that holds the space."""
    lines = [f"batch_param = {json.dumps(space.batch_param)}"]
    if space.constants:
        lines += ["", "[params]", *(f"{_key(name)} = {_value(value)}" for name, value in space.constants.items())]
    lines += ["", "[space]", *(f"{_key(name)} = {_written(kind)}" for name, kind in space.parameters.items())]
    return "\n".join(lines) + "\n"


def _parameter(name: str, value: Any) -> Parameter:
    try:
        match value:
            case list():
                return Choices(tuple(value))
            case {"low": int() | float() as low, "high": int() | float() as high}:
                unknown = [key for key in value if key not in _RANGE_KEYS]
                if unknown:
                    raise UsageError(f"unknown key {unknown[0]!r}; known are {', '.join(_RANGE_KEYS)}")
                step, log = value.get("step"), value.get("log", False)
                whole = all(isinstance(number, int) for number in (low, high, step) if number is not None)
                return Numbers(low=low, high=high, step=step, log=log, whole=whole)
    except UsageError as error:
        raise UsageError(f"parameter {name!r}: {error}") from error
    raise UsageError(
        f"parameter {name!r} is {value!r}; write a list of values, or {{ low = 1, high = 8 }} with step or log"
    )


def _written(kind: Parameter) -> str:
    if isinstance(kind, Choices):
        return _value(list(kind.options))
    parts = [f"low = {_value(kind.low)}", f"high = {_value(kind.high)}"]
    parts += [f"step = {_value(kind.step)}"] if kind.step is not None else []
    parts += ["log = true"] if kind.log else []
    return "{ " + ", ".join(parts) + " }"


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items()) + " }"
    return json.dumps(value)
