"""Recurrent networks and cells, forward and backward, in the variants that take different buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

CASES: dict[str, dict[str, Any]] = {
    "lstm": {},
    "gru": {"kind": "GRU"},
    "tanh": {"kind": "RNN"},
    "one layer": {"num_layers": 1},
    "bidirectional": {"bidirectional": True},
    "gru of three bidirectional layers": {"kind": "GRU", "bidirectional": True, "num_layers": 3},
    "time first": {"batch_first": False},
    "dropout": {"dropout": 0.2},
    "projection": {"proj_size": 32},
    "evaluation": {"train": False},
    "no biases": {"bias": False},
    "autocast": {"autocast": True},
    "half": {"dtype": "float16"},
    "packed": {"packed": True},
    "packed gru": {"packed": True, "kind": "GRU"},
    "packed and bidirectional": {"packed": True, "bidirectional": True},
    "lstm cell": {"kind": "LSTMCell"},
    "gru cell": {"kind": "GRUCell"},
    "rnn cell": {"kind": "RNNCell"},
    "gru cell under autocast": {"kind": "GRUCell", "autocast": True},
}
_LENGTH, _INPUTS, _HIDDEN = 32, 48, 64


def build(
    batch_size: int, device: torch.device, *, kind: str = "LSTM", dtype: str = "float32", train: bool = True,
    autocast: bool = False, packed: bool = False, **settings: Any,
) -> Callable[[], None]:  # fmt: skip
    """Return two training steps of a network, or one over three time steps of a cell."""
    run = _run_cell if kind.endswith("Cell") else _run_network
    return lambda: run(batch_size, device, kind, getattr(torch, dtype), train, autocast, packed, settings)


def _run_network(
    batch_size: int, device: torch.device, kind: str, dtype: torch.dtype, train: bool, autocast: bool,
    packed: bool, settings: dict[str, Any],
) -> None:  # fmt: skip
    settings = {"num_layers": 2, "batch_first": True, **settings}
    network = getattr(nn, kind)(_INPUTS, _HIDDEN, **settings).to(device, dtype).train(train)
    shape = (batch_size, _LENGTH) if settings["batch_first"] else (_LENGTH, batch_size)
    for _ in range(2):
        inputs = torch.empty((*shape, _INPUTS), device=device, dtype=dtype, requires_grad=True)
        with torch.autocast("cuda", dtype=torch.float16, enabled=autocast), torch.set_grad_enabled(train):
            if packed:
                lengths = torch.tensor([_LENGTH - 5 * number for number in range(batch_size)])
                sequences = nn.utils.rnn.pack_padded_sequence(
                    inputs, lengths, batch_first=True, enforce_sorted=False
                )
                output, _ = nn.utils.rnn.pad_packed_sequence(network(sequences)[0], batch_first=True)
            else:
                output = network(inputs)[0]
        if train:
            output.backward(torch.empty_like(output))
            network.zero_grad()
        del output, inputs


def _run_cell(
    batch_size: int, device: torch.device, kind: str, dtype: torch.dtype, _train: bool, autocast: bool,
    _packed: bool, settings: dict[str, Any],
) -> None:  # fmt: skip
    cell = getattr(nn, kind)(_INPUTS, _HIDDEN, **settings).to(device, dtype)
    inputs, hidden, state = (
        torch.empty(batch_size, width, device=device, requires_grad=True) for width in (_INPUTS, _HIDDEN, _HIDDEN)
    )
    is_lstm = kind == "LSTMCell"
    with torch.autocast("cuda", dtype=torch.float16, enabled=autocast):
        states: Any = (hidden, state) if is_lstm else hidden
        for _ in range(3):
            states = cell(inputs, states)
    output = states[0] if is_lstm else states
    output.backward(torch.empty_like(output))
