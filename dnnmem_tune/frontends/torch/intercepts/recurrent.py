"""Recurrent networks: cuDNN's operators, the fused GRU cell, and packing, which lack a full meta kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dnnmem_tune.frontends.torch import values
from dnnmem_tune.frontends.torch.intercepts.registry import intercept
from dnnmem_tune.operators.recurrent import RecurrentMode, RecurrentNetwork

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten


class CudnnCall:
    """The arguments of ``_cudnn_rnn`` that its sizes follow from.

    Source: ``aten/src/ATen/native/cudnn/RNN.cpp``, torch 2.14.
    """

    def __init__(self, inputs: torch.Tensor, settings: Any) -> None:
        (mode, hidden_width, projection, num_layers, self.batch_first, self.dropout, self.train, bidirectional,
         self.batch_sizes) = settings[:9]  # fmt: skip
        self.packed = len(self.batch_sizes) > 0
        self.network = RecurrentNetwork(
            mode=RecurrentMode(mode), input_width=inputs.size(-1), hidden_width=hidden_width,
            projection_width=projection, num_layers=num_layers, num_directions=2 if bidirectional else 1,
        )  # fmt: skip
        if self.packed:
            self.length, self.batch = len(self.batch_sizes), self.batch_sizes[0]
        else:
            self.length, self.batch = (
                inputs.shape[:2] if not self.batch_first else (inputs.size(1), inputs.size(0))
            )

    @property
    def num_steps(self) -> int:
        """Steps of all samples, padding included."""
        return int(self.length * self.batch)

    def by_time(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor with time as its first dimension, as cuDNN wants it."""
        return tensor.transpose(0, 1) if self.batch_first and not self.packed else tensor


def forward_call(args: Any) -> CudnnCall:
    """Return the sizes of a call of ``_cudnn_rnn``."""
    return CudnnCall(args[0], args[6:])


def backward_call(args: Any) -> CudnnCall:
    """Return the sizes of a call of ``_cudnn_rnn_backward``."""
    return CudnnCall(args[0], args[10:])


@intercept(aten._cudnn_rnn.default)
def cudnn_rnn(_recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """The output by time, the last states, the reserve space in training, the flat weights."""
    inputs, _weights, _stride, flat, hx, cx = args[:6]
    call = forward_call(args)
    network = call.network
    width = network.output_width * network.num_directions
    rows = (inputs.size(0),) if call.packed else (call.length, call.batch)
    output = call.by_time(inputs.new_empty((*rows, width)))
    reserve_bytes = network.reserve_elements(call.num_steps) * inputs.element_size() if call.train else 0
    return (
        output,
        hx.new_empty(hx.shape),
        hx.new_empty(0) if cx is None else cx.new_empty(cx.shape),
        inputs.new_empty(reserve_bytes, dtype=torch.uint8),
        inputs.new_empty(network.num_weights) if flat is None else flat,
    )


@intercept(aten._cudnn_rnn_backward.default)
def cudnn_rnn_backward(_recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """Gradients of input and states; those of weights are views of one buffer, unless biases are missing."""
    inputs, weights, stride, _flat, hx, cx = args[:6]
    if all(grad is None for grad in args[7:10]):
        return None, None, None, [None] * len(weights)
    call = backward_call(args)
    grad_inputs = call.by_time(inputs.new_empty(call.by_time(inputs).shape))
    gradients: list[Any] = [None] * len(weights)
    if args[-1][3]:
        flat = inputs.new_empty(call.network.num_weights)
        if shares_buffer(call.network, stride):
            offset = 0
            for index, weight in enumerate(weights):
                gradients[index] = flat[offset : offset + weight.numel()].view(weight.shape)
                offset += weight.numel()
        else:
            gradients = [weight.new_empty(weight.shape) for weight in weights]
    return grad_inputs, hx.new_empty(hx.shape), None if cx is None else cx.new_empty(cx.shape), gradients


def shares_buffer(network: RecurrentNetwork, stride: int) -> bool:
    """Return whether a module has all the weights that cuDNN counts, so that gradients can be views."""
    return stride == 4 + bool(network.projection_width)


@intercept(aten._pack_padded_sequence.default)
def pack_padded_sequence(recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """As many rows as the lengths sum up to; where they are not known, as if nothing were padded.

    Source: ``_pack_padded_sequence`` in ``aten/src/ATen/native/PackedSequence.cpp``, torch 2.14.
    """
    inputs, lengths, batch_first = args
    batch, longest = (inputs.size(0), inputs.size(1)) if batch_first else (inputs.size(1), inputs.size(0))
    value = values.known_value(lengths)
    if value is None:
        recorder.host_reads.bound("aten::_pack_padded_sequence")
        known = [longest] * batch
    else:
        with _disable_current_modes():
            known = [int(length) for length in value.tolist()]
    sizes = [sum(length > step for length in known) for step in range(max(known))]
    batch_sizes = torch.empty(len(sizes), dtype=torch.int64, device="cpu")
    with _disable_current_modes():
        values.remember(batch_sizes, torch.tensor(sizes))
    return inputs.new_empty((sum(sizes), *inputs.shape[2:])), batch_sizes


@intercept(aten._thnn_fused_gru_cell.default)
def fused_gru_cell(_recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """The new state, and five values for each of its elements.

    Source: ``_thnn_fused_gru_cell_cuda`` in ``aten/src/ATen/native/cuda/RNN.cu``, torch 2.14.
    """
    hx = args[2]
    return hx.new_empty(hx.shape), hx.new_empty((hx.size(0), hx.size(1) * 5))


@intercept(aten._thnn_fused_gru_cell_backward.default)
def fused_gru_cell_backward(_recorder: Recorder, _func: Any, args: Any, _kwargs: Any) -> Any:
    """Gradients of both sets of gates, of the state and of both biases.

    Source: ``_thnn_fused_gru_cell_backward_cuda`` in ``aten/src/ATen/native/cuda/RNN.cu``, torch 2.14.
    """
    grad, workspace, has_bias = args
    width = workspace.size(1) // 5
    gates = [workspace.new_empty((workspace.size(0), 3 * width)) for _ in range(2)]
    biases = [workspace.new_empty(3 * width) if has_bias else None for _ in range(2)]
    return *gates, torch.empty_like(grad, memory_format=torch.contiguous_format), *biases
