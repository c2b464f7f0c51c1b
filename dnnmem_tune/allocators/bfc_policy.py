"""The constants that decide how TensorFlow's BFC allocator rounds, splits and grows, and what it may reserve.

The defaults are those of TensorFlow 2.21. How the allocator uses them is in ``bfc.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from dnnmem_tune.allocators.base import PolicyAlternative
from dnnmem_tune.errors import UsageError
from dnnmem_tune.units import GIB, MIB

if TYPE_CHECKING:
    from dnnmem_tune.allocators.bfc import BfcAllocator


@dataclass(frozen=True, slots=True, kw_only=True)
class BfcPolicy:
    """One configuration of the best-fit-with-coalescing allocator. The defaults are TensorFlow's.

    Raises:
        UsageError: If a share or a limit cannot be meant.

    """

    allow_growth: bool = False
    """Take regions as they are needed, each about twice the last, instead of all memory at once.

    ``tf.config.experimental.set_memory_growth``, ``TF_FORCE_GPU_ALLOW_GROWTH``.
    """

    memory_fraction: float | None = None
    """Share of the card's total memory that may be reserved; ``per_process_gpu_memory_fraction``."""

    memory_limit_bytes: int | None = None
    """Limit of a logical device: ``tf.config.LogicalDeviceConfiguration(memory_limit=...)``, there in MiB."""

    system_memory_bytes: int | None = None
    """What is left to the driver and libraries; None for TensorFlow's rule.

    ``gpu_system_memory_size_in_mb``, ``TF_DEVICE_MIN_SYS_MEMORY_IN_MB``.
    """

    garbage_collection: bool = True
    """Give back regions without a chunk in use before failing; ``TF_ENABLE_GPU_GARBAGE_COLLECTION``."""

    fragmentation_fraction: float = 0.0
    """Share of the limit from which a chunk's slack is split off; 0 for ``max_slack_bytes``."""

    min_chunk_bytes: int = 256
    """Every chunk is a multiple of this. Source: ``kMinAllocationSize`` in ``bfc_allocator.h``."""

    max_slack_bytes: int = 128 * MIB
    """A chunk is split when at least this is left over, or when it is twice the request.

    Source: ``kMaxInternalFragmentation`` in ``BFCAllocator::FindChunkPtr``.
    """

    first_region_bytes: int = 2 * MIB
    """First region with growth. Source: the constructor of ``BFCAllocator``."""

    def __post_init__(self) -> None:
        if self.memory_fraction is not None and not 0 < self.memory_fraction <= 1:
            raise UsageError(
                f"memory_fraction is a share of the card above 0, at most 1, got {self.memory_fraction}"
            )
        if self.memory_limit_bytes is not None and self.memory_limit_bytes <= 0:
            raise UsageError(f"memory_limit must be above 0 bytes, got {self.memory_limit_bytes}")
        if self.system_memory_bytes is not None and self.system_memory_bytes < 0:
            raise UsageError(f"system_memory must be at least 0 bytes, got {self.system_memory_bytes}")

    @classmethod
    def from_text(cls, text: str) -> BfcPolicy:
        """Return the policy that a text of ``name:value`` pairs selects; empty for TensorFlow's defaults.

        Names: ``allow_growth`` and ``garbage_collection`` (true or false), ``memory_fraction``,
        ``memory_limit_mb``, ``system_memory_mb``, ``fragmentation_fraction``.

        Raises:
            UsageError: If a name is not known or a value cannot be meant.

        Example:
            >>> BfcPolicy.from_text("allow_growth:true,memory_limit_mb:1024").memory_limit_bytes
            1073741824

        """
        options: dict[str, bool | float | int] = {}
        for pair in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = (part.strip() for part in pair.partition(":"))
            if name not in _READERS:
                raise UsageError(
                    f"TensorFlow's allocator has no option {name!r}; choose among {', '.join(_READERS)}, "
                    "such as allow_growth:true"
                )
            field, read = _READERS[name]
            try:
                options[field] = read(value)
            except ValueError as error:
                raise UsageError(f"TensorFlow's allocator: {name} cannot be {value!r}") from error
        return cls(**options)  # type: ignore[arg-type]  # each reader gives its field's type

    def describe(self) -> str:
        """Name the allocator and what in the policy is not the default."""
        default = BfcPolicy()
        changed = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(default, field.name)
        ]
        return " ".join(["TensorFlow BFC allocator", *changed])

    def reservable_bytes(self, capacity_bytes: int, total_bytes: int, compute_capability: tuple[int, int]) -> int:
        """Return how much of the card the allocator takes; see ``AllocatorPolicy``.

        Source:
            ``SingleVirtualDeviceMemoryLimit`` in ``tensorflow/core/common_runtime/gpu/gpu_device.cc``.

        """
        if self.memory_limit_bytes is not None:
            return min(capacity_bytes, self.memory_limit_bytes)
        if self.memory_fraction is not None:
            return min(capacity_bytes, int(self.memory_fraction * total_bytes))
        if self.system_memory_bytes is not None:
            return capacity_bytes - self.system_memory_bytes
        return capacity_bytes - system_memory_bytes(capacity_bytes, compute_capability)

    def make_allocator(self, reservable_bytes: int, total_bytes: int) -> BfcAllocator:
        """Return a fresh allocator; see ``AllocatorPolicy``."""
        from dnnmem_tune.allocators.bfc import BfcAllocator

        return BfcAllocator(self, reservable_bytes)

    def without_limits(self) -> BfcPolicy:
        """Return the policy without shares, limits and reserve."""
        return replace(self, memory_fraction=None, memory_limit_bytes=None, system_memory_bytes=0)

    def alternatives(self) -> Sequence[PolicyAlternative]:
        """Return nothing: the rule among chunks of one size has not changed since TensorFlow 1."""
        return ()


def system_memory_bytes(free_bytes: int, compute_capability: tuple[int, int]) -> int:
    """Return what TensorFlow leaves of a card's free memory to the driver and to libraries such as cuDNN.

    Source:
        ``MinSystemMemory`` in ``tensorflow/core/common_runtime/gpu/gpu_device.cc`` (2.21).

    Example:
        >>> system_memory_bytes(16 << 30, (7, 0)) >> 20
        1050

    """
    if free_bytes < 2 * GIB:
        return 225 * MIB
    major, _ = compute_capability
    if major <= 6:
        return 500 * MIB
    return {7: 1050 * MIB, 8: 1536 * MIB}.get(major, 1800 * MIB)


def _boolean(text: str) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _mebibytes(text: str) -> int:
    return int(text) * MIB


_READERS = {
    "allow_growth": ("allow_growth", _boolean),
    "garbage_collection": ("garbage_collection", _boolean),
    "memory_fraction": ("memory_fraction", float),
    "memory_limit_mb": ("memory_limit_bytes", _mebibytes),
    "system_memory_mb": ("system_memory_bytes", _mebibytes),
    "fragmentation_fraction": ("fragmentation_fraction", float),
}
"""Name in the text -> field, and how its value is read."""
