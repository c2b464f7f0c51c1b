"""One buffer for all convolutions: the largest request that is allowed."""

from __future__ import annotations

import pytest

from dnnmem_tune.ir.size import Scratch
from dnnmem_tune.operators.convolution import Direction, convolution_scratch
from dnnmem_tune.operators.scratch import KernelTarget, scratch_bytes
from dnnmem_tune.operators.temp_space import shared_temporary_space
from dnnmem_tune.units import GIB


def _convolution(channels: int, itemsize: int = 4) -> Scratch:
    return convolution_scratch(
        Direction.FILTER_GRADIENT,
        input_shape=(8, channels, 16, 16),
        weight_shape=(channels, channels, 3, 3),
        output_shape=(8, channels, 16, 16),
        stride=(1, 1),
        groups=1,
        dtype="float32" if itemsize == 4 else "float16",
        itemsize=itemsize,
    )


def _target(model: str) -> KernelTarget:
    return KernelTarget(compute_capability=(7, 0), num_sms=80, threads_per_sm=2048, conv_workspace=model)


def test_buffer_is_the_largest_request_and_not_the_sum() -> None:
    """Operators use it one after the other."""
    small, large = _convolution(32), _convolution(64)
    buffer = shared_temporary_space([(small, GIB), (large, GIB)])

    assert scratch_bytes(buffer, 1, _target("limited")) == scratch_bytes(large, 1, _target("limited")) > 0


def test_algorithm_above_the_operators_limit_is_not_taken() -> None:
    """``workspace`` of a convolution bounds what cuDNN may choose from."""
    small, large = _convolution(32), _convolution(64)
    limit = scratch_bytes(large, 1, _target("limited")) - 1
    buffer = shared_temporary_space([(small, limit), (large, limit)])

    assert scratch_bytes(buffer, 1, _target("limited")) == scratch_bytes(small, 1, _target("limited"))


def test_type_is_that_of_the_elements() -> None:
    """A convolution in half precision asks for what one asks for by itself."""
    half = _convolution(32, itemsize=2)

    assert scratch_bytes(shared_temporary_space([(half, GIB)]), 1, _target("limited")) == scratch_bytes(
        half, 1, _target("limited")
    )


@pytest.mark.parametrize("convolutions", [[], [(_convolution(32), GIB)]])
def test_without_workspaces_nothing_is_taken(convolutions: list[tuple[Scratch, int]]) -> None:
    """The model ``none``, or no convolution."""
    assert scratch_bytes(shared_temporary_space(convolutions), 1, _target("none")) == 0
