"""Buffers of attention kernels that depend on the device, against the CUDA build of PyTorch 2.14.1."""

from __future__ import annotations

import pytest

from dnnmem_tune.ir.size import Polynomial, Scratch
from dnnmem_tune.operators.scratch import KernelTarget, scratch_bytes

T4 = KernelTarget(compute_capability=(7, 5), num_sms=40, threads_per_sm=1024)
A100 = KernelTarget(compute_capability=(8, 0), num_sms=108, threads_per_sm=2048)
A10G = KernelTarget(compute_capability=(8, 6), num_sms=80, threads_per_sm=1536)
H100 = KernelTarget(compute_capability=(9, 0), num_sms=132, threads_per_sm=2048)


def nbytes(rule: str, shape: tuple[int, ...], tag: str, target: KernelTarget) -> int:
    """Evaluate a rule on numbers."""
    return scratch_bytes(Scratch(rule, tuple(Polynomial(number) for number in shape), tag), 1, target)


@pytest.mark.parametrize(
    ("width", "tag", "target", "recorded"),
    [
        (64, "half", A100, 262_400),
        (80, "half", A100, 524_416),
        (80, "half", A10G, 524_544),
        (80, "half dropout", A10G, 1_573_376),
        (128, "half", A10G, 1_573_376),
        (128, "half", T4, 524_544),
        (160, "half", T4, 2_883_968),
        (256, "half", A100, 3_146_240),
        (320, "half", H100, 4_457_088),
        (64, "float", T4, 262_400),
        (128, "float", A100, 524_544),
        (128, "float", A10G, 524_800),
        (320, "float", A100, 1_311_360),
        (320, "float", T4, 1_312_000),
    ],
)
def test_efficient_backward_takes_the_workspace_of_the_kernel_that_fits(
    width: int, tag: str, target: KernelTarget, recorded: int
) -> None:
    """Shared memory decides the blocks: an A10G takes three times the workspace of an A100 for heads of 128."""
    assert nbytes("efficient_attention_backward", (2, 4, 128, 128, width, width), tag, target) == recorded


def test_efficient_backward_splits_keys_less_for_many_heads() -> None:
    """With 200 heads or more there is one staging area each; with two there are as many as blocks of keys."""

    def each(batch: int) -> float:
        return nbytes("efficient_attention_backward", (batch, 1, 64, 1024, 256, 256), "half", A100) / batch

    assert each(200) < each(2)
    assert each(200) == each(1000)


@pytest.mark.parametrize(
    ("shape", "part", "recorded"),
    [
        ((2, 4, 128, 128, 160), "logsumexp", 8_192),
        ((2, 4, 128, 128, 160), "output", 1_572_864),
        ((2, 4, 128, 4096, 64), "logsumexp", 32_768),
        ((2, 4, 128, 4096, 64), "output", 2_097_152),
        ((2, 4, 128, 128, 64), "output", 0),
        ((64, 12, 128, 4096, 64), "output", 0),
    ],
)
def test_flash_splits_keys_while_the_card_is_not_full(shape: tuple[int, ...], part: str, recorded: int) -> None:
    """Few blocks of queries over many keys are split; a large batch fills the card and takes nothing."""
    assert nbytes("flash_attention_split", shape, part, A100) == recorded


def test_flash_backward_accumulates_once_for_each_split_when_deterministic() -> None:
    """2 x 4 heads share 108 multiprocessors: 14 accumulators instead of one."""
    shape = (2, 4, 100, 64)
    once = nbytes("flash_attention_backward", shape, "", A100)

    assert once == 2 * 128 * 4 * 64 * 4
    assert nbytes("flash_attention_backward", shape, "deterministic", A100) == 14 * once
