"""Reductions: the scratch of one kernel, against what the CUDA build of PyTorch took for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dnnmem_tune.operators.reduction import Reduction
from dnnmem_tune.operators.scratch import scratch_bytes
from tests.frontends.torch.recorded_operators import RECORDED, TARGETS

torch = pytest.importorskip("torch")

from dnnmem_tune.frontends.torch.plans import temporaries as plans  # noqa: E402
from dnnmem_tune.frontends.torch.plans.registry import Take  # noqa: E402
from dnnmem_tune.ir.size import Scratch  # noqa: E402

ROWS = json.loads((RECORDED / "kernel_scratch_reductions.json").read_text())["rows"]
NUM_ROWS = 626
FAMILIES = {
    "sum": plans.SUM, "mean": plans.SUM, "prod": plans.SUM, "sum_float": plans.SUM, "norm": plans.NORM,
    "norm1": plans.NORM, "norminf": plans.NORM, "amax": plans.EXTREME, "argmax": plans.WITH_INDEX,
    "max.dim": plans.WITH_INDEX, "any": plans.LOGICAL, "var": plans.MOMENTS, "var_mean": plans.MOMENTS,
}  # fmt: skip
RESULT_TYPES = {"argmax": torch.int64, "any": torch.bool, "sum_float": torch.float32}


def scratch_of(row: list[Any]) -> list[int]:
    """Return the blocks, in bytes, that the plan of the row's operator takes."""
    card, operator, dtype_name, shape, strides, offset, dims, _recorded = row
    dtype = getattr(torch, dtype_name)
    reach = offset + 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    source = torch.empty(reach, dtype=dtype, device="meta").as_strided(shape, strides, offset)
    result_dtype = RESULT_TYPES.get(operator, dtype)
    actions = plans.Temporaries().reduction(source, dims, FAMILIES[operator], result_dtype)
    sizes = [action.size for action in actions if isinstance(action, Take)]
    taken = [scratch_bytes(size, 1, TARGETS[card]) for size in sizes if isinstance(size, Scratch)]
    assert len(taken) == len(sizes)
    return [nbytes for nbytes in taken if nbytes]


def test_every_recorded_reduction_is_read() -> None:
    """A file that was cut short would let the next test pass on less."""
    assert len(ROWS) == NUM_ROWS


@pytest.mark.parametrize("card", sorted(TARGETS))
def test_reductions_take_what_the_cuda_build_takes(card: str) -> None:
    """To the byte, for shapes, strides, types and cards drawn at random.

    A tensor beyond 32-bit offsets is reduced in parts that each take their own: the largest counts.
    """
    wrong = []
    for row in ROWS:
        recorded, taken = row[-1], scratch_of(row)
        one_part = len(recorded) <= 2
        if row[0] == card and (taken != recorded if one_part else max(taken) != max(recorded)):
            wrong.append((row, taken))

    assert wrong == []


def test_dimensions_that_lie_together_are_one() -> None:
    """A bias gradient over batch and length is one reduction of 4096 rows: 2048 blocks' worth of partial sums."""
    joined = Reduction(
        shape=(32, 128, 1024), strides=(128 * 1024, 1024, 1), result_strides=(0, 0, 1),
        element_bytes=4, result_bytes=4, partial_bytes=4,
    )  # fmt: skip
    flat = Reduction(
        shape=(4096, 1024), strides=(1024, 1), result_strides=(0, 1),
        element_bytes=4, result_bytes=4, partial_bytes=4,
    )  # fmt: skip
    target = TARGETS["A100-40GB"]

    assert [scratch_bytes(joined.request(what), 1, target) for what in ("buffer", "semaphores")] == [33554432, 32]
    assert [scratch_bytes(flat.request(what), 1, target) for what in ("buffer", "semaphores")] == [33554432, 32]
