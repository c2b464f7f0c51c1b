"""Read ``PYTORCH_ALLOC_CONF``, and refuse what PyTorch refuses.

Source: ``c10/core/AllocatorConfig.cpp`` and ``c10/cuda/CUDAAllocatorConfig.cpp`` of PyTorch
2.14; each limit was confirmed on that release with ``torch.cuda.memory._set_allocator_settings``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Any

from dnnmem_tune.errors import UsageError
from dnnmem_tune.units import MIB

NUM_ROUNDUP_INTERVALS = 16
"""One for each power of two from 1 MiB to 32 GiB. Source: ``kRoundUpPowerOfTwoIntervals``."""

LARGE_REQUEST_BYTES = 10 * MIB
"""A large segment must be larger. Source: ``kMinLargeAlloc`` in ``c10/core/AllocatorConfig.h``."""

LARGE_SEGMENT_BYTES = 20 * MIB
"""What a large segment is unless configured. Source: ``large_segment_size_``, same file."""

IGNORED_KEYS = frozenset(
    {
        "graph_capture_record_stream_reuse",
        "pinned_free_catch_all",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "throw_on_cudamalloc_oom",
    }
)
"""Keys that PyTorch knows and that decide nothing about device memory: pinned host memory, locks, graphs.

``throw_on_cudamalloc_oom`` is among them: recorded runs of 2.14.1 with it are equal to those without.
"""

_ENTRY = re.compile(r"([^:,\[\]]+):(\[[^\]]*\]|[^,\[\]]*)(?:,|$)")


def read_alloc_conf(text: str) -> dict[str, Any]:
    """Return the fields of ``CachingPolicy`` that a value of ``PYTORCH_ALLOC_CONF`` sets.

    Raises:
        UsageError: If PyTorch would refuse the value, or if it selects the ``cudaMallocAsync``
            backend, which is not simulated.

    Example:
        >>> read_alloc_conf("expandable_segments:True, max_split_size_mb:128")
        {'expandable_segments': True, 'max_split_bytes': 134217728}

    """
    compact = "".join(text.split())
    fields: dict[str, Any] = {}
    position = 0
    while position < len(compact):
        entry = _ENTRY.match(compact, position)
        if entry is None:
            raise _error(f"{compact[position:]!r} is no 'key:value'", "separate pairs with commas")
        key, value = entry.groups()
        if key not in IGNORED_KEYS:
            fields.update(_read_entry(key, value))
        position = entry.end()
    _check_against_segment_size(fields)
    return fields


def _error(problem: str, advice: str) -> UsageError:
    return UsageError(f"PYTORCH_ALLOC_CONF: {problem}; {advice}")


def _read_entry(key: str, value: str) -> dict[str, Any]:
    if key in _READERS:
        field, read = _READERS[key]
        return {field: read(key, value)}
    if key == "backend":
        if value == "cudaMallocAsync":
            raise _error("backend:cudaMallocAsync is not simulated", "only the default, backend:native, is")
        if value != "native":
            raise _error(f"there is no backend {value!r}", "write backend:native or leave it out")
        return {}
    near = difflib.get_close_matches(key, [*_READERS, "backend", *sorted(IGNORED_KEYS)], n=3)
    advice = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(sorted(_READERS))}"
    raise _error(f"unknown key {key!r}", advice)


def _read_mebibytes(key: str, value: str) -> int:
    if not value.isdecimal():
        raise _error(f"{key}:{value} is no whole number", f"write it in MiB, as in {key}:128")
    return int(value) * MIB


def _read_segment_size(key: str, value: str) -> int:
    nbytes = _read_mebibytes(key, value)
    if nbytes <= LARGE_REQUEST_BYTES:
        raise _error(f"{key}:{value} is too small", f"it must be above {LARGE_REQUEST_BYTES // MIB}")
    return nbytes


def _read_switch(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise _error(f"{key}:{value} is no switch", "write True or False, with the capital letter")
    return value == "True"


def _read_threshold(key: str, value: str) -> float:
    threshold = _read_number(key, value)
    if not 0 < threshold < 1:
        raise _error(f"{key}:{value} is out of range", "it must lie between 0 and 1, without either")
    return threshold


def _read_fraction(key: str, value: str) -> float:
    fraction = _read_number(key, value)
    if not 0 <= fraction <= 1:
        raise _error(f"{key}:{value} is out of range", "it must lie between 0 and 1")
    return fraction


def _read_number(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise _error(f"{key}:{value} is no number", f"write it as in {key}:0.8") from error


def _read_divisions(key: str, value: str) -> tuple[int, ...]:
    """Return the divisions of each interval.

    One number stands for all. A list names powers of two in MiB: the first named also fills the
    intervals below it, ``>`` those above the last named. What lies between two named ones stays
    without rounding, which the look of a list does not suggest.
    """
    if not value.startswith("["):
        return (_read_power_of_two(key, value),) * NUM_ROUNDUP_INTERVALS
    table = [0] * NUM_ROUNDUP_INTERVALS
    last = 0
    is_first_named = True
    for pair in value[1:-1].removesuffix(",").split(","):
        name, _, count = pair.partition(":")
        divisions = 0 if count == "0" else _read_power_of_two(key, count)
        if name == ">":
            table[last + 1 :] = [divisions] * (NUM_ROUNDUP_INTERVALS - last - 1)
            continue
        last = min(_read_power_of_two(key, name).bit_length() - 1, NUM_ROUNDUP_INTERVALS - 1)
        if is_first_named:
            table[:last] = [divisions] * last
            is_first_named = False
        table[last] = divisions
    return tuple(table)


def _read_power_of_two(key: str, value: str) -> int:
    if not value.isdecimal() or int(value).bit_count() != 1:
        raise _error(f"{key}: {value!r} is no power of two", f"write it as in {key}:4 or {key}:[256:4,>:2]")
    return int(value)


def _check_against_segment_size(fields: dict[str, Any]) -> None:
    least = fields.get("large_segment_bytes", LARGE_SEGMENT_BYTES)
    for key in ("max_split_size_mb", "max_non_split_rounding_mb"):
        nbytes = fields.get(_READERS[key][0], least)
        if nbytes < least:
            raise _error(f"{key}:{nbytes // MIB} is too small", f"it must be at least {least // MIB}")


_READERS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "expandable_segments": ("expandable_segments", _read_switch),
    "garbage_collection_threshold": ("collection_threshold", _read_threshold),
    "large_segment_size_mb": ("large_segment_bytes", _read_segment_size),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _read_mebibytes),
    "max_split_size_mb": ("max_split_bytes", _read_mebibytes),
    "per_process_memory_fraction": ("memory_fraction", _read_fraction),
    "roundup_power2_divisions": ("roundup_divisions", _read_divisions),
}
"""Key -> field of ``CachingPolicy`` and the function that reads the value."""
