"""The constants that decide how PyTorch's CUDA caching allocator rounds, splits and reserves.

The defaults are those of PyTorch 2.13 and 2.14, whose headers agree. How the allocator uses
them is in ``caching.py``; how ``PYTORCH_ALLOC_CONF`` changes them is in ``alloc_conf.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from dnnmem_tune.allocators.alloc_conf import (
    LARGE_REQUEST_BYTES,
    LARGE_SEGMENT_BYTES,
    NUM_ROUNDUP_INTERVALS,
    read_alloc_conf,
)
from dnnmem_tune.allocators.base import PolicyAlternative
from dnnmem_tune.units import MIB

if TYPE_CHECKING:
    from dnnmem_tune.allocators.caching import CachingAllocator


class TieBreak(StrEnum):
    """Which of several free blocks of one size is taken. It can decide hundreds of MiB of reserved memory.

    Source: the comparators in ``libc10_cuda.so``. Up to PyTorch 2.11 ``BlockComparatorSize`` (size, address);
    since 2.13 ``BlockComparatorSizeCounterAddress`` (pytorch pull request 183591). PyTorch 2.12 counts
    blocks instead of segments, which is not simulated; the first choice comes nearest.
    """

    OLDEST_SEGMENT = "oldest segment"
    """The oldest segment's, and in it the lowest address: PyTorch 2.13 and later."""

    LOWEST_ADDRESS = "lowest address"
    """The lowest address, which on real cards lies in the newest segment: PyTorch up to 2.11."""

    @classmethod
    def of_pytorch(cls, release: str) -> TieBreak:
        """Return the rule of a release.

        Args:
            release: As in ``torch.__version__``.

        Example:
            >>> TieBreak.of_pytorch("2.6.0+cu124")
            <TieBreak.LOWEST_ADDRESS: 'lowest address'>

        """
        major, minor = (int(part) for part in release.split(".")[:2])
        return cls.OLDEST_SEGMENT if (major, minor) >= (2, 12) else cls.LOWEST_ADDRESS


@dataclass(frozen=True, slots=True, kw_only=True)
class CachingPolicy:
    """One configuration of the caching allocator. The defaults are PyTorch's."""

    min_block_bytes: int = 512
    """Every block is a multiple of this. Source: ``kMinBlockSize`` in ``c10/core/AllocatorConfig.h``."""

    small_request_bytes: int = MIB
    """Blocks up to this size come from the small pool. Source: ``kSmallSize``, same file."""

    small_segment_bytes: int = 2 * MIB
    """What the small pool asks the driver for at once. Source: ``kSmallBuffer``, same file."""

    large_request_bytes: int = LARGE_REQUEST_BYTES
    """Blocks of at least this size get a segment of their own. Source: ``kMinLargeAlloc``, same file."""

    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    """What the large pool asks the driver for when the block is below ``large_request_bytes``.

    Source: ``large_segment_size_`` in ``c10/core/AllocatorConfig.h``; ``kLargeBuffer`` in older releases.
    """

    segment_rounding_bytes: int = 2 * MIB
    """A segment of its own is a multiple of this. Source: ``kRoundLarge``, same file."""

    driver_page_bytes: int = 2 * MIB
    """``cudaMalloc`` takes whole pages of this size off the card.

    Source: ``cuMemGetAllocationGranularity`` on Pascal and later.
    """

    tie_break: TieBreak = TieBreak.OLDEST_SEGMENT
    """Which of several free blocks of one size is taken."""

    max_split_bytes: int | None = None
    """Blocks of at least this size are never split; ``None``: all may be. Key ``max_split_size_mb``."""

    max_non_split_rounding_bytes: int | None = None
    """An unsplittable block serves a request if it is less than this much larger; ``None``: a large segment.

    Key ``max_non_split_rounding_mb``.
    """

    roundup_divisions: tuple[int, ...] = ()
    """Steps between two powers of two that sizes are rounded up to; one number for each interval, or empty.

    0 and 1 mean no such rounding. Key ``roundup_power2_divisions``.
    """

    collection_threshold: float | None = None
    """Share of the allowed memory above which idle segments are released. Key ``garbage_collection_threshold``."""

    expandable_segments: bool = False
    """One address range per pool, backed page by page, instead of many segments."""

    memory_fraction: float | None = None
    """Share of the card's total memory that may be reserved.

    Key ``per_process_memory_fraction``, or ``torch.cuda.set_per_process_memory_fraction``.
    """

    @classmethod
    def from_alloc_conf(cls, text: str) -> CachingPolicy:
        """Return the policy that a value of ``PYTORCH_ALLOC_CONF`` selects; empty for PyTorch's defaults.

        Raises:
            UsageError: If PyTorch would refuse the value, or the backend is not simulated.

        Example:
            >>> CachingPolicy.from_alloc_conf("max_split_size_mb:128").max_split_bytes
            134217728

        """
        return cls(**read_alloc_conf(text))

    def round_size(self, nbytes: int) -> int:
        """Return the size of the smallest block that serves a request.

        Args:
            nbytes: Requested bytes, at least 1.

        Source:
            ``round_size`` and ``roundup_power2_next_division`` in ``c10/cuda/CUDACachingAllocator.cpp``.

        Example:
            >>> CachingPolicy().round_size(513)
            1024
            >>> CachingPolicy(roundup_divisions=(4,) * 16).round_size(1200 * 1024)
            1310720

        """
        divisions = self._divisions(nbytes)
        if divisions <= 1 or nbytes <= self.min_block_bytes * divisions:
            return -(-nbytes // self.min_block_bytes) * self.min_block_bytes
        step = (1 << (nbytes.bit_length() - 1)) // divisions
        return -(-nbytes // step) * step

    def segment_size(self, block_bytes: int) -> int:
        """Return how much is requested from the driver when no cached block serves.

        Args:
            block_bytes: Size of the block, rounded.

        Source:
            ``get_allocation_size`` in ``c10/cuda/CUDACachingAllocator.cpp``.

        """
        if block_bytes <= self.small_request_bytes:
            return self.small_segment_bytes
        if block_bytes < self.large_request_bytes:
            return self.large_segment_bytes
        return -(-block_bytes // self.segment_rounding_bytes) * self.segment_rounding_bytes

    def _divisions(self, nbytes: int) -> int:
        if not self.roundup_divisions:
            return 0
        interval = nbytes.bit_length() - MIB.bit_length()
        return self.roundup_divisions[min(max(interval, 0), NUM_ROUNDUP_INTERVALS - 1)]

    def describe(self) -> str:
        """Name the allocator and what in the policy is not the default."""
        default = CachingPolicy()
        changed = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(default, field.name)
        ]
        return " ".join(["PyTorch caching allocator", *changed])

    def reservable_bytes(self, capacity_bytes: int, total_bytes: int, compute_capability: tuple[int, int]) -> int:
        """Return the capacity, or the share of the card where one is set; see ``AllocatorPolicy``."""
        if self.memory_fraction is None:
            return capacity_bytes
        return min(capacity_bytes, int(self.memory_fraction * total_bytes))

    def make_allocator(self, reservable_bytes: int, total_bytes: int) -> CachingAllocator:
        """Return a fresh allocator; see ``AllocatorPolicy``."""
        from dnnmem_tune.allocators.caching import CachingAllocator

        return CachingAllocator(self, reservable_bytes, total_bytes)

    def without_limits(self) -> CachingPolicy:
        """Return the policy without a share of the card."""
        return replace(self, memory_fraction=None)

    def alternatives(self) -> Sequence[PolicyAlternative]:
        """Return the policies with another rule among free blocks of one size."""
        return [
            PolicyAlternative(
                cause="choice among free blocks",
                text="PyTorch up to 2.11 takes another one of several free blocks of one size than 2.13 and later",
                policy=replace(self, tie_break=rule),
            )
            for rule in TieBreak
            if rule is not self.tie_break
        ]
