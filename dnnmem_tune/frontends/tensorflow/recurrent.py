"""The buffers of cuDNN's recurrent layers whose sizes no shape tells. Sizes as in ``operators/recurrent.py``."""

from __future__ import annotations

from typing import Any

from dnnmem_tune.operators.recurrent import RecurrentMode, RecurrentNetwork

_MODES = {
    "gru": RecurrentMode.GRU,
    "lstm": RecurrentMode.LSTM,
    "rnn_relu": RecurrentMode.RELU,
    "rnn_tanh": RecurrentMode.TANH,
}
_RESERVE = 3
"""Number of the output of ``CudnnRNN*`` that holds the reserve; the one after it lies on the host."""


def reserve_bytes(operation: Any, index: int) -> int:
    """Return the bytes of an output of ``CudnnRNN*`` whose shape is not known: its reserve, or host state."""
    if index != _RESERVE:
        return 0
    network, num_steps, itemsize = _network(operation)
    return network.reserve_elements(num_steps) * itemsize


def workspace_bytes(operation: Any) -> int:
    """Return the bytes that ``CudnnRNN*`` takes while it runs."""
    network, num_steps, itemsize = _network(operation)
    return network.workspace_elements(num_steps) * itemsize


def _network(operation: Any) -> tuple[RecurrentNetwork, int, int]:
    """Return the network, its padded steps of all samples, and the bytes of an element."""
    data, hidden = operation.inputs[0], operation.inputs[1]
    first, second, width = data.shape.as_list()
    units = hidden.shape[2]
    layers_and_directions = hidden.shape[0 if operation.get_attr("time_major") else 1]
    num_directions = 2 if operation.get_attr("direction") == b"bidirectional" else 1
    network = RecurrentNetwork(
        mode=_MODES[operation.get_attr("rnn_mode").decode()],
        input_width=width,
        hidden_width=units,
        num_layers=layers_and_directions // num_directions,
        num_directions=num_directions,
    )
    return network, first * second, data.dtype.size
