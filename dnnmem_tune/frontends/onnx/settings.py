"""What a caller may say about a model file, besides the batch size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dnnmem_tune.errors import UsageError
from dnnmem_tune.frontends.onnx.optimizers import Optimizer, parse_optimizer

_PRECISIONS = {"fp32": 32, "fp16": 16, "bf16": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxSettings:
    """How a model is to be run."""

    dims: Mapping[str, int] = field(default_factory=dict)
    """Name of a dimension -> its extent."""

    batch_dim: str | None = None
    """Name of the batch dimension, where it has no usual one."""

    trip_counts: Mapping[str, int] = field(default_factory=dict)
    """Name of a ``Loop`` node -> how often it runs."""

    memory_pattern: bool = True
    """Inference: whether the session plans memory in one block. ``SessionOptions.enable_mem_pattern``."""

    optimizer: Optimizer = field(default_factory=lambda: Optimizer("sgd", ()))
    """Training."""

    float_bits: int = 32
    """Training: of one element of what is single precision in the file."""


def read_settings(params: Mapping[str, Any]) -> OnnxSettings:
    """Return the settings in hyperparameters; names that are no setting are dimensions.

    Raises:
        UsageError: If a value cannot be meant, or a dimension is given twice.

    """
    rest = dict(params)
    dims = _counts(rest.pop("dims", {}), "dims")
    batch_dim = rest.pop("batch_dim", None)
    trip_counts = _counts(rest.pop("trip_counts", {}), "trip_counts")
    memory_pattern = rest.pop("memory_pattern", True)
    optimizer = rest.pop("optimizer", "sgd")
    precision = rest.pop("precision", "fp32")
    if batch_dim is not None and not isinstance(batch_dim, str):
        raise UsageError(f"batch_dim must be the name of a dimension, got {batch_dim!r}")
    if not isinstance(memory_pattern, bool):
        raise UsageError(f"memory_pattern must be True or False, got {memory_pattern!r}")
    if not isinstance(optimizer, str):
        raise UsageError(f"optimizer must be a text such as 'adam', got {optimizer!r}")
    if precision not in _PRECISIONS:
        raise UsageError(f"precision of an ONNX model must be one of {', '.join(_PRECISIONS)}, got {precision!r}")
    for name, extent in rest.items():
        if name in dims:
            raise UsageError(f"dimension {name} is given twice: {dims[name]} and {extent}")
        dims[name] = extent
    return OnnxSettings(
        dims=dims,
        batch_dim=batch_dim,
        trip_counts=trip_counts,
        memory_pattern=memory_pattern,
        optimizer=parse_optimizer(optimizer),
        float_bits=_PRECISIONS[precision],
    )


def _counts(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} must map names to whole numbers, got {value!r}")
    return dict(value)
