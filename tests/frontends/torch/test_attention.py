"""Attention: the kernel that CUDA chooses, and what each kernel allocates in which order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.frontends.torch.recorded_operators import (
    RECORDED,
    in_canonical_order,
    load_program,
    rows_of,
    trace_all,
)

torch = pytest.importorskip("torch")

from dnnmem_tune.frontends.torch.attention_choice import AttentionCall, choose_backend  # noqa: E402

ROWS = rows_of("attention")
CAPABILITIES = {"T4": (7, 5), "A100-40GB": (8, 0), "A10G": (8, 6), "RTX4090": (8, 9), "H100-80GB": (9, 0)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['card']}: {row['case']}")
def test_attention_allocates_as_the_cuda_build_does(row: dict[str, Any]) -> None:
    """Every buffer of forward and backward, and every copy around them, comes in CUDA's order and size."""
    traced = trace_all("attention", row["card"])[row["case"]]

    assert in_canonical_order(traced) == in_canonical_order(row["events"])


def attention_call(call: dict[str, Any], capability: tuple[int, int], **changes: Any) -> AttentionCall:
    """A recorded call on tensors without memory; three dimensions are given a batch, as torch does."""
    query, key, value, mask = load_program("attention_calls").tensors(call | changes, torch.device("meta"))
    if query.dim() == 3:
        query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        mask = mask.unsqueeze(0) if mask is not None and mask.dim() == 3 else mask
    return AttentionCall(
        query=query, key=key, value=value, mask=mask, dropout=call["dropout"], causal=call["causal"],
        grouped=call["grouped"], compute_capability=capability,
    )  # fmt: skip


@pytest.mark.parametrize("card", CAPABILITIES)
def test_kernel_is_the_one_that_the_cuda_build_chooses(card: str) -> None:
    """400 calls of random shapes, types, masks, layouts and gradients, on five generations of cards."""
    recorded = json.loads((RECORDED / "kernel_attention_choice.json").read_text())
    column = recorded["provenance"]["cards"].index(card)

    wrong = [
        (call, chosen)
        for call in recorded["rows"]
        if (chosen := choose_backend(attention_call(call, CAPABILITIES[card]))) != call["choices"][column]
    ]

    assert not wrong


PLAIN = {
    "dtype": "float16", "width": 64, "value_width": 64, "queries": 128, "keys": 128, "heads": 4, "key_heads": 4,
    "mask": "", "dropout": 0.0, "causal": False, "grad": True, "grouped": False, "layout": "heads",
    "dimensions": 4, "batch": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("capability", "changes", "backend"),
    [
        ((10, 0), {}, "cudnn"),
        ((10, 0), {"queries": 1, "grad": False}, "flash"),
        ((12, 0), {}, "flash"),
        ((12, 0), {"width": 208, "value_width": 208}, "efficient"),
        ((12, 0), {"width": 208, "value_width": 208, "grad": False}, "flash"),
        ((7, 0), {}, "efficient"),
        ((7, 0), {"dtype": "bfloat16"}, "math"),
    ],
)
def test_cards_that_were_not_recorded_follow_the_source(
    capability: tuple[int, int], changes: dict[str, Any], backend: str
) -> None:
    """Large Blackwell cards prefer cuDNN but not to decode; small ones lack shared memory for a width of 208."""
    assert choose_backend(attention_call(PLAIN, capability, **changes)) == backend


def test_switches_of_the_user_are_obeyed() -> None:
    """``sdpa_kernel`` leaves one kernel, in whatever order the card prefers them."""
    call = attention_call(PLAIN, (9, 0))
    assert choose_backend(call) == "cudnn"

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        assert choose_backend(call) == "efficient"
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        assert choose_backend(attention_call(PLAIN, (8, 0))) == "cudnn"


def test_no_kernel_left_is_the_error_of_torch() -> None:
    """A program that allows only flash attention fails on a card without it, so its estimate must not succeed."""
    with (
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION),
        pytest.raises(RuntimeError, match=r"^No available kernel\. Aborting execution\.$"),
    ):
        choose_backend(attention_call(PLAIN, (7, 5)))
