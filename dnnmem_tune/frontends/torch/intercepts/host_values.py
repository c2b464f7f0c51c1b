"""Operators whose answer depends on values that a trace does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dnnmem_tune.frontends.torch import values
from dnnmem_tune.frontends.torch.intercepts.registry import intercept

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


@intercept(aten._local_scalar_dense.default)
def read_scalar(recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """``item()``: the value where it is known, else a zero that is reported."""
    tensor = args[0]
    value = values.known_value(tensor)
    if value is not None:
        with _disable_current_modes():
            return value.item()
    recorder.host_reads.note()
    if tensor.dtype is torch.bool:
        return False
    if tensor.is_complex():
        return 0j
    return 0.0 if tensor.is_floating_point() else 0


@intercept(aten.nonzero.default)
def bound_nonzero(recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """``nonzero``, ``masked_select``, boolean masks: at most every element is selected."""
    tensor = args[0]
    value = values.known_value(tensor)
    count = tensor.numel()
    if value is not None:
        with _disable_current_modes():
            count = int(torch.count_nonzero(value))
    else:
        recorder.host_reads.bound("aten::nonzero")
    return torch.empty((tensor.dim(), count), dtype=torch.long, device=tensor.device).t()


@intercept(aten.masked_select.default)
def bound_masked_select(recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """At most every element of the broadcast operands is selected."""
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    recorder.host_reads.bound("aten::masked_select")
    return args[0].new_empty(shape.numel())


@intercept(
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index_put.default,
)
def index_by_mask(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Replace boolean masks by the positions they select, at most all.

    Source: ``expandTensors`` in ``aten/src/ATen/native/IndexingUtils.h``, torch 2.13.
    """
    source, indices, *rest = args
    if not any(index is not None and index.dtype in _MASKS for index in indices):
        return func(*args, **kwargs)
    if _fills_by_mask(indices, rest, kwargs):
        return func(source, [source.new_zeros((1,), dtype=torch.long)], *rest, **kwargs)
    expanded: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            expanded.append(index)
            continue
        with recorder:  # the positions are tensors on the device like any other
            positions = aten.nonzero.default(index)
            expanded += [positions.select(1, axis) for axis in range(index.dim())]
    if rest and rest[0].dim() == 1 and rest[0].numel() > 1:
        # As many values as the mask selects: with a bound in the mask's place they must not be matched.
        rest[0] = rest[0].new_empty(())
    return func(source, expanded, *rest, **kwargs)


_MASKS = (torch.bool, torch.uint8)


def _fills_by_mask(indices: list[torch.Tensor | None], rest: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether one number from the host is written where one mask says so: no positions are needed for that.

    Source: ``canDispatchToMaskedFill`` in ``aten/src/ATen/native/IndexingUtils.h``, torch 2.13.
    """
    present = [index for index in indices if index is not None]
    accumulate = rest[1] if len(rest) > 1 else kwargs.get("accumulate", False)
    return (
        bool(rest)
        and not accumulate
        and len(present) == 1
        and present[0].dtype in _MASKS
        and rest[0].numel() == 1
        and rest[0].device.type == "cpu"
    )


@intercept(aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default)
def bound_unique(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """At most every element is unique."""
    tensor = args[0]
    recorder.host_reads.bound(func._schema.name)
    values_, flags = torch.empty_like(tensor), [value for value in (*args[1:], *kwargs.values()) if value is True]
    if func is not aten.unique_dim.default:
        values_ = tensor.new_empty(tensor.numel())
    inverse = tensor.new_empty(tensor.shape if flags else (0,), dtype=torch.long)
    counts = tensor.new_empty((values_.size(0) if flags else 0,), dtype=torch.long)
    return values_, inverse, counts


@intercept(aten.bincount.default)
def bound_bincount(recorder: Recorder, _func: Any, args: Any, kwargs: Any) -> Any:
    """As many bins as the largest value says, where it is known; else ``minlength``, which is reported."""
    tensor = args[0]
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    minlength = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    value = values.known_value(tensor)
    if value is not None and value.numel():
        with _disable_current_modes():
            minlength = max(minlength, int(value.max()) + 1)
    else:
        recorder.host_reads.bound("aten::bincount")
    dtype = torch.long if weights is None else torch.float64 if weights.dtype is torch.float64 else torch.float32
    return tensor.new_empty(minlength, dtype=dtype)


@intercept(aten.repeat_interleave.Tensor)
def bound_repeat_interleave(recorder: Recorder, _func: Any, args: Any, kwargs: Any) -> Any:
    """As long as the repeats sum up to, where they or the length are known."""
    repeats = args[0]
    length = kwargs.get("output_size")
    value = values.known_value(repeats)
    if length is None and value is not None:
        with _disable_current_modes():
            length = int(value.sum())
    if length is None:
        recorder.host_reads.bound("aten::repeat_interleave")
        length = repeats.numel()
    return repeats.new_empty(length, dtype=torch.long)


@intercept(aten._use_cudnn_ctc_loss.default, aten._use_cudnn_ctc_loss.Tensor)
def use_cudnn_ctc_loss(_recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> bool:
    """The library takes float32 log-probabilities on the card, with whole-number targets on the CPU and blank 0.

    Source: ``_use_cudnn_ctc_loss`` in ``aten/src/ATen/native/cudnn/LossCTC.cpp``, torch 2.13; the limit
    on the lengths of the targets (256) is not looked at.
    """
    log_probabilities, targets, _input_lengths, _target_lengths, blank = args
    return bool(
        blank == 0
        and targets.dim() == 1
        and log_probabilities.dtype is torch.float32
        and targets.dtype is torch.int32
        and targets.device.type == "cpu"
        and log_probabilities.device.type == "cuda"
    )


@intercept(aten._use_miopen_ctc_loss.default, aten._use_miopen_ctc_loss.Tensor)
def use_miopen_ctc_loss(_recorder: Recorder, _func: Any, _args: Any, _kwargs: Any) -> bool:
    """MIOpen is not on an NVIDIA card."""
    return False


@intercept(aten.equal.default)
def compare(recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> bool:
    """``torch.equal``: the answer where both are known, else yes for equal shapes, which is reported."""
    first, second = (values.known_value(tensor) for tensor in args[:2])
    if first is not None and second is not None:
        with _disable_current_modes():
            return bool(torch.equal(first, second))
    recorder.host_reads.note()
    return bool(args[0].shape == args[1].shape)
