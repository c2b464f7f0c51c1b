"""What every allocator simulation offers: it applies events and counts bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self


@dataclass(frozen=True, slots=True)
class AllocatorStats:
    """Bytes in use at one moment, or the peak of each over time."""

    requested_bytes: int = 0
    """What the program asked for."""

    allocated_bytes: int = 0
    """The blocks that serve it: requested plus rounding."""

    reserved_bytes: int = 0
    """What was taken from the driver: allocated plus cached free blocks."""


class Allocator(Protocol):
    """The allocator of one device, as one stream sees it.

    It applies a trace's events as they are written there (``i`` allocates storage ``i``, ``~i``
    frees it), many in one call: a call per event would double the time of an estimate.
    """

    @property
    def stats(self) -> AllocatorStats:
        """The bytes in use now."""
        ...

    @property
    def peak(self) -> AllocatorStats:
        """The largest of each so far."""
        ...

    @property
    def peak_allocated_event(self) -> int:
        """Number of the event that first reached the peak of allocated bytes; -1 before any."""
        ...

    @property
    def peak_reserved_event(self) -> int:
        """Number of the event that first reached the peak of reserved bytes; -1 before any."""
        ...

    @property
    def num_retries(self) -> int:
        """How often the cache was released to serve a request."""
        ...

    @property
    def free_device_bytes(self) -> int | None:
        """What the driver could still hand out; ``None`` where there is no limit."""
        ...

    def run(self, events: Sequence[int], sizes: Sequence[int], start: int = 0, stop: int | None = None) -> int:
        """Apply the events from number ``start`` up to and without ``stop``.

        Args:
            events: As in ``MemoryTrace.events``.
            sizes: Bytes of each storage; one of 0 bytes owns no block, and neither event does anything.
            start: Number of the first event to apply.
            stop: Number of the first event not to apply; all by default.

        Returns:
            The number of the first event that was not applied: ``stop``, or that of a request
            that cannot be served. Freeing a storage that was never served does nothing, so a
            caller may go on behind it.

        """
        ...

    def check(self) -> None:
        """Verify the invariants of the allocator's state.

        Raises:
            AssertionError: If one does not hold.

        """
        ...


class AllocatorPolicy(Protocol):
    """The constants of one framework's allocator in one configuration, and the allocator they make.

    What the estimate layer knows of an allocator: it takes any policy that answers these.
    """

    def describe(self) -> str:
        """Return the allocator's name and what in its configuration is not the default."""
        ...

    def reservable_bytes(self, capacity_bytes: int, total_bytes: int, compute_capability: tuple[int, int]) -> int:
        """Return how much of the card the allocator may reserve; 0 or less where nothing is left.

        Args:
            capacity_bytes: What the driver can hand out: the total less the context and other processes.
            total_bytes: The card's total.
            compute_capability: Major and minor, on which some frameworks' reserve depends.

        """
        ...

    def make_allocator(self, reservable_bytes: int, total_bytes: int) -> Allocator:
        """Return a fresh allocator.

        Args:
            reservable_bytes: As from ``reservable_bytes``.
            total_bytes: The card's total.

        """
        ...

    def without_limits(self) -> Self:
        """Return the policy without shares of the card, for a card with room for anything."""
        ...

    def alternatives(self) -> Sequence[PolicyAlternative]:
        """Return the policies that the job may meet instead, for the estimate's interval."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAlternative:
    """Another policy that the job may meet, and why that is not known."""

    cause: str
    """Such as ``choice among free blocks``."""

    text: str
    """One sentence for a reader."""

    policy: AllocatorPolicy
