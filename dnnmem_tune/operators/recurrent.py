"""What cuDNN's recurrent networks need: one buffer of weights, a reserve space and a workspace.

The weight buffer is public. Reserve and workspace are not: cuDNN answers with what its
algorithm wants. They are modelled here as what any implementation must keep: for the
backward pass the activated gates, the cell state and the output of every step of every
layer; while it runs, the gates of one layer before activation. The order of magnitude is
right by construction; measured figures for a card replace these functions.

Source: ``cudnnGetRNNWeightSpaceSize`` and ``cudnnGetRNNTempSpaceSizes`` in the cuDNN 9 API
reference; ``aten/src/ATen/native/cudnn/RNN.cpp``, torch 2.14.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from dnnmem_tune.operators.scratch import KernelTarget, scratch_rule

_RANDOM_STATE_BYTES = 16
"""State of one thread's random numbers."""


class RecurrentMode(IntEnum):
    """``cudnnRNNMode_t``."""

    RELU = 0
    TANH = 1
    LSTM = 2
    GRU = 3

    @property
    def num_gates(self) -> int:
        """Matrices for each input and each hidden state."""
        return {RecurrentMode.LSTM: 4, RecurrentMode.GRU: 3}.get(self, 1)

    @property
    def has_cell_state(self) -> bool:
        """Whether a cell state is carried beside the hidden state."""
        return self is RecurrentMode.LSTM


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentNetwork:
    """The sizes of one recurrent network, in elements."""

    mode: RecurrentMode

    input_width: int

    hidden_width: int

    projection_width: int = 0
    """Width that the hidden state is projected to, or 0."""

    num_layers: int

    num_directions: int
    """2 for a bidirectional network."""

    @property
    def output_width(self) -> int:
        """Width of the hidden state that leaves a layer in one direction."""
        return self.projection_width or self.hidden_width

    def matrices(self) -> Iterator[int]:
        """Yield the elements of the matrices of each layer and direction."""
        for layer in range(self.num_layers):
            incoming = self.input_width if layer == 0 else self.output_width * self.num_directions
            gates = self.mode.num_gates * self.hidden_width
            projection = self.hidden_width * self.projection_width
            for _direction in range(self.num_directions):
                yield gates * (incoming + self.output_width) + projection

    @property
    def num_weights(self) -> int:
        """Elements of the flat buffer: all matrices, then two biases for each gate, used or not."""
        num_biases = 2 * self.mode.num_gates * self.hidden_width * self.num_layers * self.num_directions
        return sum(self.matrices()) + num_biases

    def workspace_elements(self, num_steps: int) -> int:
        """Return the elements of the workspace for ``num_steps``, the padded steps of all samples."""
        return num_steps * self.hidden_width * self.mode.num_gates * self.num_directions

    def reserve_elements(self, num_steps: int) -> int:
        """Return the elements of the reserve space that a backward pass reads."""
        kept = self.mode.num_gates + self.mode.has_cell_state + 1
        return num_steps * self.hidden_width * kept * self.num_layers * self.num_directions


@scratch_rule("cudnn_dropout_state")
def cudnn_dropout_state(_arguments: Sequence[int], _tag: str, target: KernelTarget) -> int:
    """Bytes of the random states for dropout between layers, kept for as long as the process lives.

    One for each thread that can be resident; PyTorch's source says of it "slightly over 2MB".
    """
    return _RANDOM_STATE_BYTES * target.num_sms * target.threads_per_sm
