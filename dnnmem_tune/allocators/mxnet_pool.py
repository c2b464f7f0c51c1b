"""MXNet's pool of GPU memory: rounded requests, free lists by exact size, nothing is ever split.

A request is rounded and served by a free block of just that size, or by the driver. A block
that is given back joins the free list of its size. When the driver would be left with less
than the reserve, or refuses, the pool gives all its free blocks back first.

Source: ``src/storage/pooled_storage_manager.h`` and ``storage.cc`` of MXNet 1.9.1; variables in
``docs/static_site/src/pages/api/faq/env_var.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from dnnmem_tune.allocators.base import AllocatorStats, PolicyAlternative
from dnnmem_tune.allocators.driver import UNLIMITED
from dnnmem_tune.errors import UsageError
from dnnmem_tune.units import MIB, parse_bytes


class PoolType(StrEnum):
    """``MXNET_GPU_MEM_POOL_TYPE``."""

    NAIVE = "Naive"
    """Rounds to pages, and large requests to multiples of a large unit."""

    ROUND = "Round"
    """Rounds to powers of two, and beyond a cut-off to multiples of it."""

    UNPOOLED = "Unpooled"
    """Asks the driver each time."""


VARIABLES = {
    "MXNET_GPU_MEM_POOL_TYPE": "pool_type",
    "MXNET_GPU_MEM_POOL_RESERVE": "reserve_percent",
    "MXNET_GPU_MEM_POOL_PAGE_SIZE": "page_bytes",
    "MXNET_GPU_MEM_LARGE_ALLOC_ROUND_SIZE": "large_rounding_bytes",
    "MXNET_GPU_MEM_POOL_ROUND_LINEAR_CUTOFF": "linear_cutoff",
}
"""Environment variable -> field of the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MxnetPoolPolicy:
    """Constants of MXNet's pool; the defaults are those of MXNet 1.9.1."""

    pool_type: PoolType = PoolType.NAIVE

    reserve_percent: int = 5
    """Share of the card below which free memory makes the pool give its free blocks back."""

    page_bytes: int = 4096
    """Smallest block; ``Naive`` rounds smaller requests to multiples of it."""

    large_rounding_bytes: int = 2 * MIB
    """``Naive`` rounds requests above it to multiples of it."""

    linear_cutoff: int = 24
    """``Round`` rounds to powers of two up to two to this power, then to multiples of that."""

    def __post_init__(self) -> None:
        if not 0 <= self.reserve_percent < 100:
            raise UsageError(f"MXNET_GPU_MEM_POOL_RESERVE is a percentage below 100, got {self.reserve_percent}")
        if self.page_bytes < 32:
            raise UsageError(f"MXNET_GPU_MEM_POOL_PAGE_SIZE is at least 32 bytes, got {self.page_bytes}")
        if self.large_rounding_bytes < 1:
            raise UsageError(
                f"MXNET_GPU_MEM_LARGE_ALLOC_ROUND_SIZE is at least 1 byte, got {self.large_rounding_bytes}"
            )
        if not 20 <= self.linear_cutoff <= 34:
            raise UsageError(
                f"MXNET_GPU_MEM_POOL_ROUND_LINEAR_CUTOFF lies from 20 to 34, got {self.linear_cutoff}"
            )

    @classmethod
    def from_alloc_conf(cls, text: str) -> MxnetPoolPolicy:
        """Return the policy that environment variables configure.

        Args:
            text: ``NAME=VALUE`` pairs, separated by commas or spaces, such as
                ``MXNET_GPU_MEM_POOL_TYPE=Round``; empty for the defaults.

        Raises:
            UsageError: If a variable is not one of the pool's, or its value cannot be meant.

        Example:
            >>> MxnetPoolPolicy.from_alloc_conf("MXNET_GPU_MEM_POOL_TYPE=Unpooled").pool_type.value
            'Unpooled'

        """
        given: dict[str, PoolType | int] = {}
        for word in text.replace(",", " ").split():
            name, equals, value = word.partition("=")
            if not equals or name not in VARIABLES:
                raise UsageError(
                    f"{word!r} does not configure MXNet's pool; "
                    f"write NAME=VALUE with one of {', '.join(VARIABLES)}"
                )
            field = VARIABLES[name]
            given[field] = _pool_type(value) if field == "pool_type" else _number(name, value)
        return cls(**given)  # type: ignore[arg-type]  # names and types agree by the table above

    def block_bytes(self, nbytes: int) -> int:
        """Return the size of the block that serves a request of at least 1 byte.

        Example:
            >>> MxnetPoolPolicy().block_bytes(5 << 20) >> 20
            6

        """
        match self.pool_type:
            case PoolType.NAIVE:
                unit = self.large_rounding_bytes if nbytes > self.large_rounding_bytes else self.page_bytes
                return max(self.page_bytes, -(-nbytes // unit) * unit)
            case PoolType.ROUND:
                cutoff = 1 << self.linear_cutoff
                if nbytes > cutoff:
                    return -(-nbytes // cutoff) * cutoff
                return 1 << (max(nbytes, self.page_bytes) - 1).bit_length()
            case PoolType.UNPOOLED:
                return nbytes

    def describe(self) -> str:
        """Name the allocator and what in the policy is not the default."""
        default = MxnetPoolPolicy()
        changed = [
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(default, field.name)
        ]
        return " ".join(["MXNet memory pool", *changed])

    def reservable_bytes(self, capacity_bytes: int, total_bytes: int, compute_capability: tuple[int, int]) -> int:
        """Return the capacity: the reserve makes the pool give blocks back, it refuses nothing."""
        return capacity_bytes

    def make_allocator(self, reservable_bytes: int, total_bytes: int) -> MxnetPool:
        """Return a fresh pool; see ``AllocatorPolicy``."""
        return MxnetPool(self, reservable_bytes, total_bytes * self.reserve_percent // 100)

    def without_limits(self) -> MxnetPoolPolicy:
        """Return the policy without a reserve."""
        return replace(self, reserve_percent=0)

    def alternatives(self) -> Sequence[PolicyAlternative]:
        """Return nothing: the pool leaves no choice open."""
        return ()


def _pool_type(value: str) -> PoolType:
    try:
        return PoolType(value)
    except ValueError as error:
        names = ", ".join(PoolType)
        raise UsageError(f"MXNET_GPU_MEM_POOL_TYPE is one of {names}, got {value!r}") from error


def _number(name: str, value: str) -> int:
    try:
        return int(value) if value.isdecimal() else parse_bytes(value)
    except UsageError as error:
        raise UsageError(f"{name} is a whole number, got {value!r}") from error


class MxnetPool:
    """The pool of one device.

    Example:
        >>> pool = MxnetPoolPolicy().make_allocator(1 << 30, 1 << 30)
        >>> pool.run([0, ~0, 1], [5 << 20, 6 << 20])  # the second takes the block of the first
        3
        >>> pool.peak.reserved_bytes >> 20
        6

    """

    def __init__(self, policy: MxnetPoolPolicy, capacity_bytes: int = UNLIMITED, reserve_bytes: int = 0) -> None:
        self.peak_allocated_event = -1
        self.peak_reserved_event = -1
        self.num_retries = 0
        self._policy = policy
        self._capacity_bytes = capacity_bytes
        self._reserve_bytes = reserve_bytes
        self._keeps = policy.pool_type is not PoolType.UNPOOLED
        self._blocks: dict[int, int] = {}
        """Storage -> size of its block."""
        self._requests: dict[int, int] = {}
        """Storage -> bytes requested."""
        self._free: dict[int, int] = {}
        """Size -> number of free blocks."""
        self._block_of: dict[int, int] = {}
        self._requested_bytes = self._allocated_bytes = self._reserved_bytes = 0
        self._peak = [0, 0, 0]

    @property
    def stats(self) -> AllocatorStats:
        """The bytes in use now."""
        return AllocatorStats(self._requested_bytes, self._allocated_bytes, self._reserved_bytes)

    @property
    def peak(self) -> AllocatorStats:
        """The largest of each so far."""
        return AllocatorStats(*self._peak)

    @property
    def free_device_bytes(self) -> int | None:
        """What the driver could still hand out."""
        return None if self._capacity_bytes >= UNLIMITED else self._capacity_bytes - self._reserved_bytes

    def run(self, events: Sequence[int], sizes: Sequence[int], start: int = 0, stop: int | None = None) -> int:
        """Apply events; see ``Allocator.run``."""
        stop = len(events) if stop is None else stop
        for position in range(start, stop):
            code = events[position]
            if code < 0:
                self._give_back(~code)
                continue
            if sizes[code] and not self._serve(code, sizes[code]):
                return position
            if self._allocated_bytes > self._peak[1]:
                self._peak[1] = self._allocated_bytes
                self.peak_allocated_event = position
            if self._reserved_bytes > self._peak[2]:
                self._peak[2] = self._reserved_bytes
                self.peak_reserved_event = position
            self._peak[0] = max(self._peak[0], self._requested_bytes)
        return stop

    def check(self) -> None:
        """Verify the invariants of the state; see ``Allocator.check``."""
        assert self._requested_bytes == sum(self._requests.values()) <= self._allocated_bytes
        assert self._allocated_bytes == sum(self._blocks.values())
        free_bytes = sum(size * count for size, count in self._free.items())
        assert self._reserved_bytes == self._allocated_bytes + free_bytes <= self._capacity_bytes
        assert self._keeps or not free_bytes

    def _serve(self, storage: int, nbytes: int) -> bool:
        block_bytes = self._block_of.get(nbytes)
        if block_bytes is None:
            block_bytes = self._block_of[nbytes] = self._policy.block_bytes(nbytes)
        if self._free.get(block_bytes):
            self._free[block_bytes] -= 1
        elif self._take(block_bytes):
            self._reserved_bytes += block_bytes
        else:
            return False
        self._blocks[storage] = block_bytes
        self._requests[storage] = nbytes
        self._requested_bytes += nbytes
        self._allocated_bytes += block_bytes
        return True

    def _take(self, block_bytes: int) -> bool:
        """Return whether the driver has room, once the pool has given back what it can spare."""
        left = self._capacity_bytes - self._reserved_bytes - block_bytes
        if left < (self._reserve_bytes if self._keeps else 0):
            self._release_free()
        return self._reserved_bytes + block_bytes <= self._capacity_bytes

    def _release_free(self) -> None:
        free_bytes = sum(size * count for size, count in self._free.items())
        if free_bytes:
            self.num_retries += 1
            self._reserved_bytes -= free_bytes
        self._free.clear()

    def _give_back(self, storage: int) -> None:
        block_bytes = self._blocks.pop(storage, 0)
        if not block_bytes:
            return
        self._requested_bytes -= self._requests.pop(storage)
        self._allocated_bytes -= block_bytes
        if self._keeps:
            self._free[block_bytes] = self._free.get(block_bytes, 0) + 1
        else:
            self._reserved_bytes -= block_bytes
