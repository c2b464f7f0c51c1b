"""Evaluate shape arithmetic: the small whole-number tensors from which models compute shapes.

Reshape targets, slice bounds and trip counts are computed in a model by a dozen operators on a few numbers.
With every extent known they can be evaluated, which data propagation in ``onnx`` does for some of them only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MAX_ELEMENTS = 4096
"""Larger tensors are data, and are never made: a few bytes in a file can ask for terabytes."""

Inputs = Sequence[Array | None]
Attributes = Mapping[str, Any]


def evaluate(op: str, inputs: Inputs, attributes: Attributes) -> list[Array] | None:
    """Return the outputs of a node; None where they are not evaluated.

    Args:
        op: Name of the operator, of ONNX's own domain.
        inputs: Values; None for an optional input that is not given.
        attributes: As the node has them.

    """
    function = _EVALUATED.get(op)
    if function is None or sum(value.size for value in inputs if value is not None) > MAX_ELEMENTS:
        return None
    try:
        with np.errstate(all="ignore"):
            outputs = function(inputs, attributes)
    except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError, AttributeError, KeyError):
        return None  # what is wrong with the node is for type inference to say
    values = outputs if isinstance(outputs, list) else [outputs]
    arrays = [np.asarray(value) for value in values]
    return arrays if sum(array.size for array in arrays) <= MAX_ELEMENTS else None


def _axes(inputs: Inputs, attributes: Attributes, index: int = 1) -> tuple[int, ...] | None:
    """Return the axes, which later opsets take as an input and earlier ones as an attribute."""
    if len(inputs) > index and (given := inputs[index]) is not None:
        return tuple(int(axis) for axis in given.ravel())
    return tuple(attributes["axes"]) if "axes" in attributes else None


def _squeeze(inputs: Inputs, attributes: Attributes) -> Array:
    return np.squeeze(_first(inputs), axis=_axes(inputs, attributes))


def _unsqueeze(inputs: Inputs, attributes: Attributes) -> Array:
    return np.expand_dims(_first(inputs), _axes(inputs, attributes) or ())


def _slice(inputs: Inputs, attributes: Attributes) -> Array:
    array = _first(inputs)
    if "starts" in attributes:
        starts, ends = attributes["starts"], attributes["ends"]
        axes, steps = attributes.get("axes", range(len(starts))), [1] * len(starts)
    else:
        rest = [None if value is None else value.ravel().tolist() for value in inputs[1:]] + [None] * 4
        starts, ends = rest[0] or [], rest[1] or []
        axes, steps = rest[2] or range(len(starts)), rest[3] or [1] * len(starts)
    index = [slice(None)] * array.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # An end before the first element is written as a very negative number.
        stop = None if step < 0 and end < -array.shape[axis] else int(end)
        index[int(axis)] = slice(int(start), stop, int(step))
    return np.asarray(array[tuple(index)])


def _reshape(inputs: Inputs, attributes: Attributes) -> Array:
    array, shape = _first(inputs), inputs[1]
    target = [int(extent) for extent in (shape if shape is not None else attributes["shape"])]
    if not attributes.get("allowzero"):
        target = [array.shape[index] if extent == 0 else extent for index, extent in enumerate(target)]
    return array.reshape(target)


def _filled(inputs: Inputs, attributes: Attributes) -> Array:
    shape = [int(extent) for extent in _first(inputs)]
    if _product(shape) > MAX_ELEMENTS:
        raise ValueError("too large to be made")
    value = attributes.get("value")
    return np.full(shape, np.float32(0) if value is None else np.asarray(value).ravel()[0])


def _range(inputs: Inputs, _attributes: Attributes) -> Array:
    start, limit, delta = (value.item() for value in inputs if value is not None)
    if abs((limit - start) / delta) > MAX_ELEMENTS:
        raise ValueError("too large to be made")
    return np.arange(start, limit, delta, dtype=_first(inputs).dtype)


def _expand(inputs: Inputs, _attributes: Attributes) -> Array:
    shape = np.broadcast_shapes(_first(inputs).shape, tuple(int(extent) for extent in _second(inputs)))
    if _product(shape) > MAX_ELEMENTS:
        raise ValueError("too large to be made")
    return np.broadcast_to(_first(inputs), shape)


def _split(inputs: Inputs, attributes: Attributes) -> list[Array]:
    array, axis = _first(inputs), attributes.get("axis", 0)
    sizes = inputs[1].tolist() if len(inputs) > 1 and inputs[1] is not None else attributes.get("split")
    if sizes is None:
        return list(np.array_split(array, attributes["num_outputs"], axis=axis))
    return list(np.split(array, np.cumsum(sizes)[:-1], axis=axis))


def _divide(inputs: Inputs, _attributes: Attributes) -> Array:
    left, right = _first(inputs), _second(inputs)
    if left.dtype.kind in "iu":
        # ONNX's division of whole numbers truncates towards zero.
        return np.asarray(np.trunc(left / right), dtype=left.dtype)
    return np.asarray(left / right)


def _given(inputs: Inputs, index: int) -> Array:
    value = inputs[index]
    if value is None:
        raise ValueError(f"input {index} is not given")
    return value


def _first(inputs: Inputs) -> Array:
    return _given(inputs, 0)


def _second(inputs: Inputs) -> Array:
    return _given(inputs, 1)


def _product(shape: Sequence[int]) -> int:
    product = 1
    for extent in shape:
        product *= int(extent)
    return product


def _unary(function: Callable[[Array], Any]) -> Callable[[Inputs, Attributes], Any]:
    return lambda inputs, _attributes: function(_first(inputs))


def _binary(function: Callable[[Array, Array], Any]) -> Callable[[Inputs, Attributes], Any]:
    return lambda inputs, _attributes: function(_first(inputs), _second(inputs))


def _folded(function: Callable[..., Any]) -> Callable[[Inputs, Attributes], Any]:
    def evaluate_all(inputs: Inputs, _attributes: Attributes) -> Any:
        result = _first(inputs)
        for other in inputs[1:]:
            result = function(result, other)
        return result

    return evaluate_all


def _reduction(function: Callable[..., Any]) -> Callable[[Inputs, Attributes], Any]:
    def reduce(inputs: Inputs, attributes: Attributes) -> Any:
        keep = bool(attributes.get("keepdims", 1))
        return function(_first(inputs), axis=_axes(inputs, attributes), keepdims=keep)

    return reduce


_EVALUATED: dict[str, Callable[[Inputs, Attributes], Any]] = {
    "Abs": _unary(np.abs),
    "Add": _binary(np.add),
    "And": _binary(np.logical_and),
    "Cast": lambda inputs, attributes: _first(inputs).astype(attributes["to"]),
    "Ceil": _unary(np.ceil),
    "Concat": lambda inputs, attributes: np.concatenate(
        [value for value in inputs if value is not None], axis=attributes["axis"]
    ),
    "ConstantOfShape": _filled,
    "Div": _divide,
    "Equal": _binary(np.equal),
    "Expand": _expand,
    "Floor": _unary(np.floor),
    "Gather": lambda inputs, attributes: np.take(_first(inputs), _second(inputs), axis=attributes.get("axis", 0)),
    "Greater": _binary(np.greater),
    "GreaterOrEqual": _binary(np.greater_equal),
    "Identity": _unary(lambda value: value),
    "Less": _binary(np.less),
    "LessOrEqual": _binary(np.less_equal),
    "Max": _folded(np.maximum),
    "Min": _folded(np.minimum),
    "Mod": _binary(np.mod),
    "Mul": _binary(np.multiply),
    "Neg": _unary(np.negative),
    "Not": _unary(np.logical_not),
    "Or": _binary(np.logical_or),
    "Range": _range,
    "ReduceMax": _reduction(np.max),
    "ReduceMin": _reduction(np.min),
    "ReduceProd": _reduction(np.prod),
    "ReduceSum": _reduction(np.sum),
    "Reshape": _reshape,
    "Round": _unary(np.round),
    "Slice": _slice,
    "Split": _split,
    "Sqrt": _unary(np.sqrt),
    "Squeeze": _squeeze,
    "Sub": _binary(np.subtract),
    "Transpose": lambda inputs, attributes: np.transpose(_first(inputs), attributes.get("perm")),
    "Unsqueeze": _unsqueeze,
    "Where": lambda inputs, _attributes: np.where(_first(inputs), _second(inputs), _given(inputs, 2)),
}
