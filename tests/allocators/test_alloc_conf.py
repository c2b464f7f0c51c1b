"""``PYTORCH_ALLOC_CONF`` is read as PyTorch reads it, and refused where PyTorch refuses it."""

from __future__ import annotations

import pytest

from dnnmem_tune.allocators.alloc_conf import IGNORED_KEYS
from dnnmem_tune.allocators.policy import CachingPolicy
from dnnmem_tune.errors import UsageError
from dnnmem_tune.units import MIB


def test_empty_text_selects_the_defaults() -> None:
    """An unset variable and an empty one mean the same."""
    assert CachingPolicy.from_alloc_conf(" ") == CachingPolicy()


def test_every_key_reaches_its_field() -> None:
    """Blanks are ignored, as by PyTorch's tokenizer, and so is a comma at the end."""
    text = (
        "backend:native, expandable_segments:True, max_split_size_mb: 128, max_non_split_rounding_mb:64,"
        "garbage_collection_threshold:0.8,per_process_memory_fraction:0.5,large_segment_size_mb:32,"
        "roundup_power2_divisions:4,"
    )

    assert CachingPolicy.from_alloc_conf(text) == CachingPolicy(
        expandable_segments=True,
        max_split_bytes=128 * MIB,
        max_non_split_rounding_bytes=64 * MIB,
        collection_threshold=0.8,
        memory_fraction=0.5,
        large_segment_bytes=32 * MIB,
        roundup_divisions=(4,) * 16,
    )


@pytest.mark.parametrize(
    ("divisions", "expected"),
    [
        ("4", [4] * 16),
        ("[>:2]", [0] + [2] * 15),
        ("[16:8,256:4,>:2]", [8] * 5 + [0] * 3 + [4] + [2] * 7),
        ("[1:1,16:8,256:4,>:2]", [1, 0, 0, 0, 8, 0, 0, 0, 4] + [2] * 7),
        ("[256:2,4:8]", [2, 2, 8, 2, 2, 2, 2, 2, 2] + [0] * 7),
        ("[131072:4]", [4] * 16),
        ("[>:2,64:4]", [4] * 7 + [2] * 9),
        ("[16:0,>:4]", [0] * 5 + [4] * 11),
        ("[4:2,>:8,64:4]", [2, 2, 2, 8, 8, 8, 4] + [8] * 9),
        ("[16:8,32:4,>:2,]", [8] * 5 + [4] + [2] * 10),
    ],
)
def test_division_lists_are_filled_as_by_pytorch(divisions: str, expected: list[int]) -> None:
    """The tables that ``torch.cuda.memory._snapshot()["allocator_settings"]`` of PyTorch 2.14.1 showed."""
    policy = CachingPolicy.from_alloc_conf(f"roundup_power2_divisions:{divisions}")

    assert list(policy.roundup_divisions) == expected


@pytest.mark.parametrize("key", sorted(IGNORED_KEYS))
def test_keys_about_other_things_change_nothing(key: str) -> None:
    """Pinned memory, locks and graphs decide no device size."""
    assert CachingPolicy.from_alloc_conf(f"{key}:1") == CachingPolicy()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_split_size:128", "unknown key 'max_split_size'; did you mean max_split_size_mb?"),
        ("zzz:1", "unknown key 'zzz'; known are expandable_segments, garbage_collection_threshold,"),
        ("expandable_segments:true", "expandable_segments:true is no switch; write True or False"),
        ("expandable_segments", "'expandable_segments' is no 'key:value'; separate pairs with commas"),
        ("backend:cudaMallocAsync", "backend:cudaMallocAsync is not simulated; only the default"),
        ("backend:natve", "there is no backend 'natve'; write backend:native"),
        ("max_split_size_mb:19", "max_split_size_mb:19 is too small; it must be at least 20"),
        (
            "large_segment_size_mb:40,max_split_size_mb:30",
            "max_split_size_mb:30 is too small; it must be at least 40",
        ),
        ("max_non_split_rounding_mb:8", "max_non_split_rounding_mb:8 is too small; it must be at least 20"),
        ("max_split_size_mb:1e3", "max_split_size_mb:1e3 is no whole number; write it in MiB"),
        ("large_segment_size_mb:10", "large_segment_size_mb:10 is too small; it must be above 10"),
        (
            "garbage_collection_threshold:1",
            "garbage_collection_threshold:1 is out of range; it must lie between 0 and 1",
        ),
        ("garbage_collection_threshold:half", "garbage_collection_threshold:half is no number"),
        ("per_process_memory_fraction:1.5", "per_process_memory_fraction:1.5 is out of range"),
        ("roundup_power2_divisions:3", "roundup_power2_divisions: '3' is no power of two"),
        ("roundup_power2_divisions:[17:2]", "roundup_power2_divisions: '17' is no power of two"),
    ],
)
def test_what_pytorch_refuses_is_refused(text: str, message: str) -> None:
    """One line that says what was received and what to write instead."""
    with pytest.raises(UsageError) as caught:
        CachingPolicy.from_alloc_conf(text)

    assert str(caught.value).startswith(f"PYTORCH_ALLOC_CONF: {message}")
    assert "\n" not in str(caught.value)
