"""The reserve that cuDNN keeps between the forward and the backward pass of a recurrent layer."""

from __future__ import annotations

from typing import Any

_GATES = {"lstm": 4, "gru": 3, "rnn_relu": 1, "rnn_tanh": 1}
_RESERVE = 3
"""Number of the output of ``CudnnRNN*`` that holds the reserve; the one after it lies on the host."""


def reserve_bytes(operation: Any, index: int) -> int:
    """Return the bytes of an output of ``CudnnRNN*`` whose shape is not known: its reserve, or host state.

    What the backward pass needs of each step: the gates, the cell state before and after its tanh,
    and the output, of each unit. cuDNN does not say what it stores; this is what cannot be computed
    again cheaply.
    """
    if index != _RESERVE:
        return 0
    data, hidden = operation.inputs[0], operation.inputs[1]
    steps, batch, _width = data.shape.as_list()
    layers_and_directions, _batch, units = hidden.shape.as_list()
    mode = operation.get_attr("rnn_mode").decode()
    gates = _GATES.get(mode, 4)
    per_unit = gates + (2 if mode == "lstm" else 1)
    return int(steps * batch * layers_and_directions * units * per_unit * data.dtype.size)
