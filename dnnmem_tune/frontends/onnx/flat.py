"""An ONNX model with every size known: one list of nodes, without bodies, functions or symbols."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TensorType:
    """What a value is."""

    element: int
    """``TensorProto.DataType``."""

    shape: tuple[int, ...]
    """Elements per axis."""

    bits: int
    """Of one element; four-bit types share a byte, two by two."""

    is_float: bool
    """Whether gradients can flow through it."""

    @property
    def num_elements(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return -(-self.num_elements * self.bits // 8)


@dataclass(frozen=True, slots=True)
class Node:
    """One call of an operator."""

    op: str
    """``Conv``; with its domain where that is not ONNX's own (``com.microsoft.FusedConv``)."""

    name: str
    """Path of the node: names of the bodies and functions it lies in, then its own."""

    inputs: tuple[str, ...]
    """Names of values; an empty one is an optional input that is not given."""

    outputs: tuple[str, ...]
    """Names of values; an empty one is an optional output that is not asked for."""

    attributes: Mapping[str, Any]
    """Numbers, strings and lists of them."""

    times: int = 1
    """How often it runs: the trip counts of the loops around it, multiplied."""

    @property
    def module(self) -> str:
        """Path before the last part of the name: ``encoder.layer.0`` of ``/encoder/layer.0/MatMul``."""
        return self.name.strip("/").rpartition("/")[0].replace("/", ".")


@dataclass(slots=True)
class FlatModel:
    """The nodes that run on the device, in order, and what they refer to."""

    nodes: list[Node] = field(default_factory=list)

    types: dict[str, TensorType] = field(default_factory=dict)
    """Of every value."""

    inputs: list[str] = field(default_factory=list)
    """What the caller passes."""

    outputs: list[str] = field(default_factory=list)
    """What the caller gets."""

    weights: list[str] = field(default_factory=list)
    """Initializers, and constants made of them alone, that a node reads."""

    on_host: set[str] = field(default_factory=set)
    """Values that were evaluated while reading: shapes, and what is computed from them."""

    bounded: Counter[str] = field(default_factory=Counter)
    """Operators whose output depends on values, and was bounded from above."""

    unknown: Counter[str] = field(default_factory=Counter)
    """Operators whose output size is not known; it was taken to be that of the largest input."""

    notes: list[str] = field(default_factory=list)
    """What else a reader should know, one sentence each."""
