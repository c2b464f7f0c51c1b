"""MXNet's temporary space: one buffer for each device that all operators share and that only grows.

Of the operators only convolutions ask for amounts of weight, and what those ask for is
cuDNN's choice on the card: each is asked for by the model of ``operators.convolution``.

Source: ``ResourceTemp`` in ``src/resource.cc`` and ``GetTempSize`` in
``src/operator/nn/cudnn/cudnn_convolution-inl.h`` (MXNet 1.9.1).
"""

from __future__ import annotations

from collections.abc import Sequence

from dnnmem_tune.ir.size import Polynomial, Scratch
from dnnmem_tune.operators.convolution import convolution_workspace
from dnnmem_tune.operators.scratch import KernelTarget, scratch_rule

RULE = "shared temporary space"
"""Name under which traces refer to the rule."""

_ITEMSIZE = 5
"""Position of the bytes of one element among the arguments of a convolution."""


def shared_temporary_space(convolutions: Sequence[tuple[Scratch, int]]) -> Scratch:
    """Return what a trace records for the buffer.

    Args:
        convolutions: The workspace of each convolution, and the bytes it is allowed.

    """
    arguments: list[Polynomial] = []
    for scratch, limit_bytes in dict.fromkeys(convolutions):
        arguments += [Polynomial(len(scratch.arguments)), Polynomial(limit_bytes), *scratch.arguments]
    return Scratch(RULE, tuple(arguments))


@scratch_rule(RULE)
def temporary_space(arguments: Sequence[int], tag: str, target: KernelTarget) -> int:
    """Return the bytes of the buffer once every operator has run: the largest request.

    Args:
        arguments: For each convolution: number of its arguments, bytes it is allowed, its arguments.
        tag: Not used; a convolution computes in the type that the size of its elements says.
        target: Names the model of the workspace.

    """
    largest = position = 0
    while position < len(arguments):
        count, limit_bytes = arguments[position : position + 2]
        start = position + 2
        position = start + count
        itemsize = arguments[start + _ITEMSIZE]
        dtype = "float16" if itemsize == 2 else "float32"
        nbytes = convolution_workspace(arguments[start:position], dtype, target)
        # An algorithm that needs more than is allowed is not among those that cuDNN is asked for.
        largest = max(largest, nbytes if nbytes <= limit_bytes else 0)
    return largest
