"""Note every convolution with its shapes, so that its workspace follows the estimator's own models.

While a trace is recorded each convolution asks for a workspace of a size that nothing else
has. In the trace that allocation then stands exactly where PyTorch puts it, and its size is
the scratch rule of the convolution; at an estimate the model in use says what it takes.
"""

from __future__ import annotations

from collections.abc import Callable

from dnnmem_tune.emulator.load import Convolution, LoadedCard
from dnnmem_tune.frontends.torch.emulated.ranges import CONVOLUTION, _Range
from dnnmem_tune.ir.size import Scratch
from dnnmem_tune.operators.convolution import Direction, convolution_scratch, convolution_workspace
from dnnmem_tune.operators.scratch import KernelTarget

MARKER_BYTES = 7
"""No tensor asks for seven bytes inside a convolution."""

_DTYPES = {0: ("float32", 4), 1: ("float64", 8), 2: ("float16", 2), 3: ("int8", 1), 9: ("bfloat16", 2)}
"""``cudnnDataType_t`` -> name and bytes of an element."""


def scratch_of(convolution: Convolution) -> Scratch:
    """Return the scratch rule of one convolution."""
    rank = convolution.rank
    dtype, itemsize = _DTYPES.get(convolution.dtype, ("float32", 4))
    return convolution_scratch(
        Direction(convolution.direction),
        input_shape=convolution.input[:rank],
        weight_shape=convolution.weight[:rank],
        output_shape=convolution.output[:rank],
        stride=convolution.stride[: rank - 2],
        groups=convolution.groups,
        dtype=dtype,
        itemsize=itemsize,
        channels_last=bool(convolution.channels_last),
    )


def follow_model(card: LoadedCard, target: KernelTarget, note: Callable[[int], object] | None = None) -> None:
    """Let convolutions take what the model of ``target`` says; ``note`` hears each answer in bytes."""

    def answer(convolution: Convolution) -> int:
        scratch = scratch_of(convolution)
        arguments = [argument.constant for argument in scratch.arguments]
        nbytes = convolution_workspace(arguments, scratch.tag, target)
        if note is not None:
            note(nbytes)
        return nbytes

    card.answer_convolutions(answer if target.conv_workspace != "none" else None)


class ConvolutionLog:
    """The scratch rule of each convolution that ran, numbered in the profile."""

    def __init__(self, card: LoadedCard) -> None:
        self.scratches: list[Scratch] = []
        card.answer_convolutions(lambda _convolution: MARKER_BYTES)
        card.watch_convolutions(self._note)

    def _note(self, convolution: Convolution) -> None:
        with _Range(f"{CONVOLUTION}{len(self.scratches)}"):
            self.scratches.append(scratch_of(convolution))
