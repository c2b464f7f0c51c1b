"""Recurrent networks: contiguous copies by time, cuDNN's workspace, the state of its dropout.

Source: ``_cudnn_rnn`` and ``_cudnn_rnn_backward`` in ``aten/src/ATen/native/cudnn/RNN.cpp``,
``_pack_padded_sequence`` in ``aten/src/ATen/native/PackedSequence.cpp``, torch 2.14.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.intercepts.recurrent import (
    CudnnCall,
    backward_call,
    forward_call,
    shares_buffer,
)
from dnnmem_tune.frontends.torch.plans.registry import Action, Give, Output, Take, memory_plan
from dnnmem_tune.frontends.torch.recurrent import known_sizes, runs_of_equal_sizes
from dnnmem_tune.ir.size import Polynomial, Scratch
from dnnmem_tune.ir.trace import Category

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten

_SEED_BYTES = 8

_with_dropout_state: weakref.WeakSet[Recorder] = weakref.WeakSet()
"""Recordings in which a network with dropout was trained already: its random states stay for good."""


@memory_plan(aten._cudnn_rnn.default)
def cudnn_rnn(recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """The input by time, output and states, flat weights if they were not, workspace, reserve."""
    inputs, flat = args[0], args[3]
    call = forward_call(args)
    output, hy, cy, reserve, weights = outputs
    if call.train and call.dropout > 0 and recorder not in _with_dropout_state:
        _with_dropout_state.add(recorder)
        recorder.give(recorder.take(Polynomial(_SEED_BYTES), Category.TEMPORARY))
        recorder.take(Scratch("cudnn_dropout_state", (), ""), Category.WORKSPACE)
    yield from _copy(call.by_time(inputs))
    yield from (Output(tensor) for tensor in (output, hy, cy))
    if flat is None:
        yield Output(weights)
    yield _workspace(call, inputs)
    yield Output(reserve)


@memory_plan(aten._cudnn_rnn_backward.default)
def cudnn_rnn_backward(_recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """Zeros for missing gradients, then gradients of input and states, then those of the weights.

    Each half makes its own contiguous copies and takes the workspace again.
    """
    inputs, _weights, stride, _flat, hx, cx, output, grad_output, grad_hy, grad_cy = args[:10]
    if outputs[0] is None:
        return
    call = backward_call(args)
    num_taken = 0
    for grad, like in ((grad_output, output), (grad_hy, hx), (grad_cy, cx)):
        if grad is None and like is not None:
            yield Take(_bytes(like))
            num_taken += 1
    temporaries = list(_copy(call.by_time(inputs)))
    temporaries += _copy(call.by_time(grad_output)) if grad_output is not None else _copy_of_zeros(call, output)
    yield from temporaries
    grad_inputs, grad_hx, grad_cx, _gradients = outputs
    yield from (Output(tensor) for tensor in (grad_inputs, grad_hx, grad_cx) if tensor is not None)
    yield _workspace(call, inputs)
    yield from (Give(num_taken + number) for number in range(len(temporaries) + 1))
    num_taken += len(temporaries) + 1
    if args[-1][3]:
        yield from _weight_gradients(call, inputs, outputs[3], shares_buffer(call.network, stride))


def _weight_gradients(
    call: CudnnCall, inputs: torch.Tensor, gradients: list[torch.Tensor], shared: bool
) -> Iterator[Action]:
    yield from _copy(call.by_time(inputs))
    if shared:
        yield Output(gradients[0])
    else:
        yield Take(Polynomial(call.network.num_weights * inputs.element_size()))
    yield _workspace(call, inputs)


def _copy_of_zeros(call: CudnnCall, output: torch.Tensor) -> Iterator[Take]:
    """The zeros that stand for a missing gradient are contiguous with the batch first."""
    if call.by_time(output).size(0) > 1 and call.batch_first and not call.packed:
        yield Take(_bytes(output))


@memory_plan(aten._thnn_fused_lstm_cell.default, aten._thnn_fused_gru_cell.default)
def fused_cell(_recorder: Recorder, _args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """What the backward pass reads comes before the new states.

    Source: ``aten/src/ATen/native/cuda/RNN.cu``, torch 2.14.
    """
    yield Output(outputs[-1])


@memory_plan(aten._pack_padded_sequence.default)
def pack_padded_sequence(_recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """A contiguous copy for each run of steps with the same sequences, then all of them in a row."""
    inputs, _lengths, batch_first = args
    packed, batch_sizes = outputs
    by_time = inputs.transpose(0, 1) if batch_first else inputs
    for start, stop, size in runs_of_equal_sizes(known_sizes(batch_sizes)):
        yield from _copy(by_time[start:stop, :size])
    yield Output(packed)


def _workspace(call: CudnnCall, inputs: torch.Tensor) -> Take:
    elements = call.network.workspace_elements(call.num_steps)
    return Take(Polynomial(elements * inputs.element_size()), Category.WORKSPACE)


def _copy(tensor: torch.Tensor) -> Iterator[Take]:
    if not tensor.is_contiguous():
        yield Take(_bytes(tensor))


def _bytes(tensor: torch.Tensor) -> Polynomial:
    return Polynomial(tensor.numel() * tensor.element_size())
