"""Output shapes that no schema gives: operators of other domains, and sizes that depend on data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dnnmem_tune.frontends.onnx.flat import TensorType
from dnnmem_tune.frontends.onnx.values import Array

Given = Sequence[TensorType | None]
Values = Sequence[Array | None]
Partial = tuple[int | None, ...] | None

_LIKE_FIRST = frozenset(
    (
        *("Gelu", "FastGelu", "QuickGelu", "BiasGelu", "BiasAdd", "BiasSplitGelu", "BiasSoftmax"),
        *("LayerNormalization", "SimplifiedLayerNormalization", "GroupNorm", "Inverse", "RotaryEmbedding"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "MultiHeadAttention"),
        *("GroupQueryAttention", "DecoderMaskedMultiHeadAttention"),
        *("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"),
    )
)
"""Operators of ``com.microsoft`` whose first output has the shape of the first input.

Source: ``docs/ContribOperators.md`` of ONNX Runtime 1.32.
"""

_SAME_AS = {"FusedConv": "Conv", "NhwcFusedConv": "Conv", "FusedMatMul": "MatMul", "FusedGemm": "Gemm"}
"""Operators of ``com.microsoft`` that take the attributes of a standard one, and more."""

_BROADCAST = frozenset({"QLinearAdd", "QLinearMul"})


def copied_schema(onnx: Any, node: Any) -> tuple[Any, str]:
    """Return the node to infer by, and its domain: fused operators infer as the one that they begin with."""
    standard = _SAME_AS.get(node.op_type)
    if node.domain in ("", "ai.onnx") or standard is None:
        return node, "" if node.domain == "ai.onnx" else node.domain
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.op_type, copy.domain = standard, ""
    schema = onnx.defs.get_schema(standard)
    kept = [attribute for attribute in node.attribute if attribute.name in schema.attributes]
    del copy.attribute[:]
    copy.attribute.extend(kept)
    return copy, ""


def unlisted_shape(op: str, given: Given, attributes: Mapping[str, Any], output: int) -> tuple[int, ...] | None:
    """Return the exact shape of an output of an operator that ``onnx`` has no schema for; None where not known."""
    first = given[0] if given else None
    if first is None:
        return None
    if op in ("Dropout", "BiasDropout") or (op in _LIKE_FIRST and output == 0):
        return first.shape
    if op == "MatMulNBits":
        return (*first.shape[:-1], int(attributes["N"]))
    if op in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul") and len(given) > 1 and given[1] is not None:
        return (*first.shape[:-1], given[1].shape[-1])
    if op in _BROADCAST and len(given) > 3 and given[3] is not None:
        rank = max(len(first.shape), len(given[3].shape))
        left = (1,) * (rank - len(first.shape)) + first.shape
        right = (1,) * (rank - len(given[3].shape)) + given[3].shape
        return tuple(max(pair) for pair in zip(left, right, strict=True))
    if op == "DynamicQuantizeLSTM":
        hidden = int(attributes["hidden_size"])
        directions = 2 if attributes.get("direction") == "bidirectional" else 1
        state = (directions, first.shape[1], hidden)
        return (first.shape[0], *state) if output == 0 else state
    if op == "Attention" and output == 0 and len(given) > 1 and given[1] is not None:
        return (*first.shape[:-1], given[1].shape[-1] // 3)
    return None


def bounded_shape(
    op: str, given: Given, values: Values, attributes: Mapping[str, Any], partial: Partial
) -> tuple[int, ...] | None:
    """Return the largest shape that an output can have whose extents depend on data; None where there is no bound.

    Args:
        op: Name of the operator.
        given: Types of the inputs.
        values: Values of the inputs, where they are known.
        attributes: Of the node.
        partial: What inference knows of the output's axes.

    """
    first = given[0] if given else None
    if first is None:
        return None
    if op == "NonZero":
        return len(first.shape), first.num_elements
    if op == "NonMaxSuppression" and len(given) > 1 and given[1] is not None:
        batches, boxes = first.shape[0], first.shape[1]
        most = values[2] if len(values) > 2 else None
        kept = min(boxes, int(most.ravel()[0])) if most is not None and most.size else boxes
        return batches * given[1].shape[1] * kept, 3
    if op in ("Compress", "Unique", "StringSplit") and partial is None:
        return (first.num_elements,)
    if op in ("Slice", "TopK", "Compress", "Unique") and (partial is None or len(partial) == len(first.shape)):
        known = partial or (None,) * len(first.shape)
        return tuple(extent if limit is None else limit for extent, limit in zip(first.shape, known, strict=True))
    if op in ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Split", "SplitToSequence", "SequenceAt"):
        return _all_elements(first.num_elements, partial)
    return None


def largest_shape(given: Given, partial: Partial) -> tuple[int, ...]:
    """Return a shape for an output of which nothing bounds the size: that of the largest input."""
    tensors = [tensor for tensor in given if tensor is not None]
    largest = max(tensors, key=lambda tensor: tensor.num_elements, default=None)
    if largest is None:
        return tuple(extent or 1 for extent in partial or ())
    if partial is None:
        return largest.shape
    return _all_elements(largest.num_elements, partial)


def _all_elements(num_elements: int, partial: Partial) -> tuple[int, ...]:
    """Return a shape with so many elements, all that is open of them in the first open axis."""
    if partial is None:
        return (num_elements,)
    known = math.prod(extent for extent in partial if extent is not None)
    rest = -(-num_elements // known) if known else 0
    extents = []
    for extent in partial:
        extents.append(rest if extent is None else extent)
        if extent is None:
            rest = 1
    return tuple(extents)
