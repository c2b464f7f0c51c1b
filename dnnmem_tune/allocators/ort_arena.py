"""ONNX Runtime's arena on the GPU: best fit with coalescing, in regions that never join.

Source:
    ``core/framework/bfc_arena.{h,cc}`` of ONNX Runtime. 21 bins from 256 bytes to 256 MiB; in the
    first bin with a chunk large enough the smallest is taken, of equals that at the lowest address;
    it is split if it has twice the size, or ``max_dead_bytes_per_chunk`` more. Regions grow by one of two
    strategies; weights are reserved from the driver, outside the regions, but count towards ``gpu_mem_limit``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from dnnmem_tune.allocators.base import AllocatorStats, PolicyAlternative
from dnnmem_tune.allocators.driver import Driver
from dnnmem_tune.errors import UsageError
from dnnmem_tune.units import MIB, parse_bytes

ExtendStrategy = Literal["kNextPowerOfTwo", "kSameAsRequested"]

_UNIT_BYTES = 256
_NUM_BINS = 21
_FEWEST_BACKPEDAL_BYTES = 8 * 1024
_DRIVER_PAGE_BYTES = 2 * MIB
"""``cudaMalloc`` takes whole pages off the card. Source: ``cuMemGetAllocationGranularity``, Pascal and later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtArenaPolicy:
    """One configuration of the arena. The defaults are those of the CUDA provider."""

    extend_strategy: ExtendStrategy = "kNextPowerOfTwo"
    """How regions grow. Option ``arena_extend_strategy``."""

    memory_limit_bytes: int | None = None
    """Bytes that regions and weights may take together. Option ``gpu_mem_limit``; none by default."""

    initial_chunk_bytes: int = MIB
    """Size of the first region. Option ``initial_chunk_size_bytes``."""

    max_dead_bytes: int = 128 * MIB
    """What may be left unused in a chunk that is handed out. Option ``max_dead_bytes_per_chunk``."""

    max_extend_bytes: int = 1024 * MIB
    """Where regions stop to double. Option ``max_power_of_two_extend_bytes``."""

    num_reserved: int = 1
    """How many of a trace's first storages are weights, which are reserved outside the regions."""

    def __post_init__(self) -> None:
        if self.extend_strategy not in ("kNextPowerOfTwo", "kSameAsRequested"):
            raise UsageError(
                f"arena_extend_strategy is kNextPowerOfTwo or kSameAsRequested, got {self.extend_strategy!r}"
            )
        if self.memory_limit_bytes is not None and self.memory_limit_bytes <= 0:
            raise UsageError(f"gpu_mem_limit must be above 0 bytes, got {self.memory_limit_bytes}")

    @classmethod
    def from_text(cls, text: str) -> OrtArenaPolicy:
        """Return the policy that provider options select, as ``name:value`` with commas between them.

        Names: ``arena_extend_strategy``, ``gpu_mem_limit``, ``initial_chunk_size_bytes``,
        ``max_dead_bytes_per_chunk``, ``max_power_of_two_extend_bytes``; sizes as numbers of bytes or as ``2GiB``.

        Raises:
            UsageError: If a name or a value cannot be meant.

        Example:
            >>> OrtArenaPolicy.from_text("arena_extend_strategy:kSameAsRequested").extend_strategy
            'kSameAsRequested'

        """
        options: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            name, colon, value = (piece.strip() for piece in part.partition(":"))
            field_name = _OPTIONS.get(name)
            if field_name is None or not colon:
                raise UsageError(
                    f"{part.strip()!r} is no option of ONNX Runtime's arena; write name:value with one of "
                    f"{', '.join(_OPTIONS)}"
                )
            if field_name == "extend_strategy":
                options[field_name] = value
            else:
                options[field_name] = int(value) if value.isdigit() else parse_bytes(value)
        return cls(**options)

    def describe(self) -> str:
        """Name the allocator and what is not the default."""
        changed = [
            f"{name}={getattr(self, field_name)}"
            for name, field_name in _OPTIONS.items()
            if getattr(self, field_name) != _DEFAULTS[field_name]
        ]
        return " ".join(["ONNX Runtime arena", *changed])

    def reservable_bytes(self, capacity_bytes: int, total_bytes: int, compute_capability: tuple[int, int]) -> int:
        """Return the capacity, or ``gpu_mem_limit`` where that is less; see ``AllocatorPolicy``."""
        del total_bytes, compute_capability
        return capacity_bytes if self.memory_limit_bytes is None else min(capacity_bytes, self.memory_limit_bytes)

    def make_allocator(self, reservable_bytes: int, total_bytes: int) -> OrtArena:
        """Return a fresh arena; see ``AllocatorPolicy``."""
        del total_bytes
        return OrtArena(self, reservable_bytes)

    def without_limits(self) -> OrtArenaPolicy:
        """Return the policy without ``gpu_mem_limit``."""
        return replace(self, memory_limit_bytes=None)

    def alternatives(self) -> Sequence[PolicyAlternative]:
        """Return nothing: the arena does as it is told."""
        return ()


_OPTIONS = {
    "arena_extend_strategy": "extend_strategy",
    "gpu_mem_limit": "memory_limit_bytes",
    "initial_chunk_size_bytes": "initial_chunk_bytes",
    "max_dead_bytes_per_chunk": "max_dead_bytes",
    "max_power_of_two_extend_bytes": "max_extend_bytes",
}
"""Names of ONNX Runtime's options -> fields."""

_DEFAULTS = {field.name: field.default for field in fields(OrtArenaPolicy)}


@dataclass(slots=True)
class _Chunk:
    size: int
    previous: int | None
    next: int | None
    storage: int | None = None


class OrtArena:
    """The arena of one device.

    Args:
        policy: Its options.
        capacity_bytes: What the driver can hand out; None is no limit.

    Example:
        >>> arena = OrtArena(OrtArenaPolicy(num_reserved=0))
        >>> arena.run([0, 1], [3211264, 65536])  # the first leaves too little over to be split
        2
        >>> arena.stats.reserved_bytes >> 20
        8

    """

    num_retries = 0

    def __init__(self, policy: OrtArenaPolicy, capacity_bytes: int | None = None) -> None:
        self.policy = policy
        self.peak_allocated_event = -1
        self.peak_reserved_event = -1
        # Real addresses of regions rise or fall as the driver likes; among equal chunks the older region serves.
        self._driver = Driver(capacity_bytes, _DRIVER_PAGE_BYTES, descending=False)
        self._extend_bytes = _rounded(policy.initial_chunk_bytes)
        self._chunks: dict[int, _Chunk] = {}
        self._bins: list[list[tuple[int, int]]] = [[] for _ in range(_NUM_BINS)]
        self._address_of: dict[int, int] = {}
        self._requested: dict[int, int] = {}
        self._reserved: dict[int, int] = {}
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
        """What could still be taken from the driver."""
        return self._available_bytes()

    def run(self, events: Sequence[int], sizes: Sequence[int], start: int = 0, stop: int | None = None) -> int:
        """Apply events; see ``Allocator.run``."""
        stop = len(events) if stop is None else stop
        for position in range(start, stop):
            code = events[position]
            if code < 0:
                self._free(~code)
            elif sizes[code]:
                served = (
                    self._reserve(code, sizes[code])
                    if code < self.policy.num_reserved
                    else (self._allocate(code, sizes[code]))
                )
                if not served:
                    return position
                self._note_peaks(position)
        return stop

    def check(self) -> None:
        """Verify the invariants of the state; see ``Allocator.check``."""
        in_use = sum(chunk.size for chunk in self._chunks.values() if chunk.storage is not None)
        outside = sum(self._reserved.values())
        assert self._allocated_bytes == in_use + outside
        assert self._reserved_bytes == sum(chunk.size for chunk in self._chunks.values()) + outside
        assert self._requested_bytes == sum(self._requested.values())
        free = {(chunk.size, address) for address, chunk in self._chunks.items() if chunk.storage is None}
        assert free == {key for keys in self._bins for key in keys}
        for address, chunk in self._chunks.items():
            if chunk.next is not None:
                assert chunk.next == address + chunk.size
                assert chunk.storage is not None or self._chunks[chunk.next].storage is not None

    def _reserve(self, storage: int, nbytes: int) -> bool:
        if nbytes > self._available_bytes() or self._driver.malloc(nbytes) is None:
            return False
        self._reserved[storage] = self._requested[storage] = nbytes
        self._requested_bytes += nbytes
        self._allocated_bytes += nbytes
        self._reserved_bytes += nbytes
        return True

    def _allocate(self, storage: int, nbytes: int) -> bool:
        size = _rounded(nbytes)
        address = self._find(size)
        if address is None:
            if not self._extend(size):
                return False
            address = self._find(size)
            assert address is not None
        chunk = self._chunks[address]
        chunk.storage = storage
        self._address_of[storage] = address
        self._requested[storage] = nbytes
        self._requested_bytes += nbytes
        self._allocated_bytes += chunk.size
        return True

    def _find(self, size: int) -> int | None:
        """Take the best chunk out of its bin, split it if enough is left over, and return its address."""
        for index in range(_bin(size), _NUM_BINS):
            keys = self._bins[index]
            place = bisect_left(keys, (size, -1))
            if place == len(keys):
                continue
            found, address = keys.pop(place)
            if found >= 2 * size or found - size >= self.policy.max_dead_bytes:
                self._split(address, size)
            return address
        return None

    def _split(self, address: int, size: int) -> None:
        chunk = self._chunks[address]
        rest = address + size
        self._chunks[rest] = _Chunk(chunk.size - size, address, chunk.next)
        if chunk.next is not None:
            self._chunks[chunk.next].previous = rest
        chunk.size, chunk.next = size, rest
        self._insert(rest)

    def _extend(self, size: int) -> bool:
        available = self._available_bytes() // _UNIT_BYTES * _UNIT_BYTES
        if size > available:
            return False
        nbytes = size
        if self.policy.extend_strategy == "kNextPowerOfTwo":
            increased = False
            while size > self._extend_bytes:
                self._extend_bytes *= 2
                increased = True
            nbytes = min(self._extend_bytes, available)
            if not increased:
                self._extend_bytes = max(
                    self._extend_bytes, min(2 * self._extend_bytes, self.policy.max_extend_bytes)
                )
        address = self._driver.malloc(nbytes)
        while address is None:
            nbytes = _rounded(int(nbytes * 0.9))
            if nbytes < size or nbytes < _FEWEST_BACKPEDAL_BYTES:
                return False
            address = self._driver.malloc(nbytes)
        self._reserved_bytes += nbytes
        self._chunks[address] = _Chunk(nbytes, None, None)
        self._insert(address)
        return True

    def _free(self, storage: int) -> None:
        nbytes = self._requested.pop(storage, None)
        if nbytes is None:
            return
        self._requested_bytes -= nbytes
        if storage in self._reserved:
            self._allocated_bytes -= nbytes
            self._reserved_bytes -= self._reserved.pop(storage)
            self._driver.give(nbytes)
            return
        address = self._address_of.pop(storage)
        chunk = self._chunks[address]
        self._allocated_bytes -= chunk.size
        chunk.storage = None
        if chunk.next is not None and self._chunks[chunk.next].storage is None:
            self._join(address, chunk.next)
        if chunk.previous is not None and self._chunks[chunk.previous].storage is None:
            address, joined = chunk.previous, address
            self._remove(address)
            self._merge(address, joined)
        self._insert(address)

    def _join(self, address: int, following: int) -> None:
        self._remove(following)
        self._merge(address, following)

    def _merge(self, address: int, following: int) -> None:
        gone, chunk = self._chunks.pop(following), self._chunks[address]
        chunk.size += gone.size
        chunk.next = gone.next
        if gone.next is not None:
            self._chunks[gone.next].previous = address

    def _insert(self, address: int) -> None:
        size = self._chunks[address].size
        insort(self._bins[_bin(size)], (size, address))

    def _remove(self, address: int) -> None:
        size = self._chunks[address].size
        keys = self._bins[_bin(size)]
        del keys[bisect_left(keys, (size, address))]

    def _available_bytes(self) -> int:
        on_card = self._driver.capacity_bytes - self._driver.used_bytes
        limit = self.policy.memory_limit_bytes
        return on_card if limit is None else min(on_card, max(0, limit - self._reserved_bytes))

    def _note_peaks(self, position: int) -> None:
        if self._allocated_bytes > self._peak[1]:
            self.peak_allocated_event = position
        if self._reserved_bytes > self._peak[2]:
            self.peak_reserved_event = position
        now = (self._requested_bytes, self._allocated_bytes, self._reserved_bytes)
        self._peak = [max(pair) for pair in zip(self._peak, now, strict=True)]


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _UNIT_BYTES) * _UNIT_BYTES


def _bin(size: int) -> int:
    return min(_NUM_BINS - 1, size.bit_length() - _UNIT_BYTES.bit_length())
