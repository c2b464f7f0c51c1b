"""Recurrent networks as the CUDA build runs them: through cuDNN, with weights in one flat buffer.

Source: ``aten/src/ATen/native/RNN.cpp``, ``aten/src/ATen/native/cudnn/RNN.cpp``,
``aten/src/ATen/cudnn/AutocastRNN.cpp`` and ``torch/nn/modules/rnn.py``, torch 2.14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.modules.rnn import RNNBase
from torch.utils._python_dispatch import _disable_current_modes

from dnnmem_tune.frontends.torch import values
from dnnmem_tune.operators.recurrent import RecurrentMode, RecurrentNetwork

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)


def overrides() -> dict[str, Callable[..., Any]]:
    """Return the composite operators and what runs instead of them."""
    functions: dict[str, Callable[..., Any]] = {
        "_pad_packed_sequence": pad_packed_sequence,
        "_pack_padded_sequence_backward": pack_padded_sequence_backward,
    }
    for name, mode in (
        ("lstm", RecurrentMode.LSTM),
        ("gru", RecurrentMode.GRU),
        ("rnn_tanh", RecurrentMode.TANH),
        ("rnn_relu", RecurrentMode.RELU),
    ):
        functions[f"{name}.input"] = _for_padded(mode)
        functions[f"{name}.data"] = _for_packed(mode)
    return functions


def install_flattening() -> None:
    """Let modules move their weights into one buffer when they come to the device, as with cuDNN."""
    RNNBase.flatten_parameters = _flatten_parameters  # type: ignore[method-assign]


def _flatten_parameters(self: RNNBase) -> None:
    weights: list[Any] = self._flat_weights
    if len(weights) != len(self._flat_weights_names) or not weights:
        return
    if any(not isinstance(weight, torch.Tensor) or not weight.is_cuda for weight in weights):
        return
    if len({weight.dtype for weight in weights}) > 1 or len({id(weight) for weight in weights}) < len(weights):
        return
    network = RecurrentNetwork(
        mode=RecurrentMode[self.mode.removeprefix("RNN_")],
        input_width=self.input_size,
        hidden_width=self.hidden_size,
        projection_width=self.proj_size,
        num_layers=self.num_layers,
        num_directions=2 if self.bidirectional else 1,
    )
    with torch.no_grad():
        flat = torch.zeros(network.num_weights, dtype=weights[0].dtype, device=weights[0].device)
        for weight, view in zip(weights, _views(flat, weights), strict=True):
            weight.data = view


def _views(flat: torch.Tensor, weights: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield a part of the buffer for each weight; which part it is does not change any size."""
    offset = 0
    for weight in weights:
        yield flat[offset : offset + weight.numel()].view(weight.shape)
        offset += weight.numel()


def _for_padded(mode: RecurrentMode) -> Callable[..., Any]:
    def run(
        inputs: torch.Tensor, hx: Any, weights: Any, has_biases: bool, num_layers: int,
        dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        return _run(
            mode, inputs, [], hx, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first
        )

    return run


def _for_packed(mode: RecurrentMode) -> Callable[..., Any]:
    def run(
        data: torch.Tensor, batch_sizes: torch.Tensor, hx: Any, weights: Any, has_biases: bool, num_layers: int,
        dropout: float, train: bool, bidirectional: bool,
    ) -> Any:  # fmt: skip
        sizes = known_sizes(batch_sizes)
        return _run(mode, data, sizes, hx, weights, has_biases, num_layers, dropout, train, bidirectional, False)

    return run


def _run(
    mode: RecurrentMode, inputs: torch.Tensor, batch_sizes: list[int], hx: Any, weights: Any, has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """``_cudnn_impl``."""
    hidden, cell = hx if mode.has_cell_state else (hx, None)
    hidden_width = (hidden if cell is None else cell).size(-1)
    projection = hidden.size(-1) if hidden.size(-1) != hidden_width else 0
    stride = (4 if has_biases else 2) + bool(projection)
    network = RecurrentNetwork(
        mode=mode, input_width=inputs.size(-1), hidden_width=hidden_width, projection_width=projection,
        num_layers=num_layers, num_directions=2 if bidirectional else 1,
    )  # fmt: skip
    flat = _flat_buffer(weights, network)
    if torch.is_autocast_enabled("cuda") and weights[0].dtype is torch.float32:
        dtype = torch.get_autocast_dtype("cuda")
        flat, weights = _cast_weights(weights, network, dtype)
        hidden = hidden.to(dtype)
        cell = None if cell is None else cell.to(dtype)
        inputs = inputs.to(dtype)
    output, hy, cy, _reserve, _flat = aten._cudnn_rnn(
        inputs, weights, stride, flat, hidden, cell, int(mode), hidden_width,
        projection, num_layers, batch_first, dropout, train, bidirectional, batch_sizes, None,
    )  # fmt: skip
    return (output, hy, cy) if mode.has_cell_state else (output, hy)


def _flat_buffer(weights: Sequence[torch.Tensor], network: RecurrentNetwork) -> torch.Tensor | None:
    """``try_get_weight_buf``: the buffer that all weights lie in, if they do."""
    storage = weights[0].untyped_storage()
    if any(weight.untyped_storage()._cdata != storage._cdata for weight in weights):
        return None
    if storage.nbytes() < network.num_weights * weights[0].element_size():
        return None
    return weights[0].detach().as_strided((network.num_weights,), (1,), 0)


def _cast_weights(
    weights: Sequence[torch.Tensor], network: RecurrentNetwork, dtype: torch.dtype
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """``cudnn_rnn_cast_reflatten``: a flat buffer of the lower precision that gradients flow back from."""
    with torch.no_grad():
        flat = torch.zeros(network.num_weights, dtype=dtype, device=weights[0].device)
        parts = [view.detach() for view in _views(flat, weights)]
    return flat, [part.copy_(weight) for part, weight in zip(parts, weights, strict=True)]


def known_sizes(batch_sizes: torch.Tensor) -> list[int]:
    """Return the sequences that are still running at each step, of a packed batch.

    Raises:
        ValueError: If they are not known while tracing; lengths bounded from above are known.

    """
    value = values.known_value(batch_sizes)
    if value is None:
        raise ValueError("the batch sizes of a packed sequence are not known while tracing")
    with _disable_current_modes():
        return [int(size) for size in value.tolist()]


def pad_packed_sequence(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """``aten::_pad_packed_sequence``: one copy for each run of steps with the same sequences."""
    sizes = known_sizes(batch_sizes)
    length = max(total_length, len(sizes))
    output = torch.full((length, sizes[0], *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device)
    offset = 0
    for start, stop, size in runs_of_equal_sizes(sizes):
        num_rows = size * (stop - start)
        rows = data.narrow(0, offset, num_rows).view(stop - start, size, *data.shape[1:])
        output.narrow(0, start, stop - start).narrow(1, 0, size).copy_(rows)
        offset += num_rows
    lengths = torch.tensor([sum(size > index for size in sizes) for index in range(sizes[0])])
    return (output.transpose(0, 1) if batch_first else output), lengths


def pack_padded_sequence_backward(
    grad: torch.Tensor, size: Sequence[int], _batch_sizes: torch.Tensor, batch_first: bool
) -> torch.Tensor:
    """Zeros in the shape of the padded input, time first; rows are added in place, which takes nothing."""
    by_time = (size[1], size[0], *size[2:]) if batch_first else tuple(size)
    padded = torch.zeros(by_time, dtype=grad.dtype, device=grad.device)
    return padded.transpose(0, 1) if batch_first else padded


def runs_of_equal_sizes(sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield first step, last step plus one, and number of sequences of each run."""
    start = 0
    for step in range(1, len(sizes) + 1):
        if step == len(sizes) or sizes[step] != sizes[start]:
            yield start, step, sizes[start]
            start = step
