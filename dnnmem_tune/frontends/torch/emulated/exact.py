"""What the allocator itself reports for a job: no model of it stands in between.

Imports no torch: the caller's side reads these values too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a job: building it, or one step. All in bytes."""

    name: str

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    """Largest within the part."""

    allocated_bytes: int
    reserved_bytes: int
    """At its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactRun:
    """One job, run on the emulated card."""

    batch_size: int

    parts: tuple[Part, ...]
    """``build``, ``step 0``, ...; the last one is where memory ran out, if it did."""

    out_of_memory: str
    """PyTorch's own message; empty where the job fits."""

    peak_device_bytes: int
    """Largest use of the card, context and everything outside the allocator included."""

    num_retries: int
    """How often the cache had to be emptied to go on."""

    host_reads: dict[str, int] = field(default_factory=dict)
    """Where values, which are zero, were read on the host."""

    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the job ran to its end."""
        return not self.out_of_memory

    @property
    def peak_allocated_bytes(self) -> int:
        """Over the whole job."""
        return max((part.peak_allocated_bytes for part in self.parts), default=0)

    @property
    def peak_reserved_bytes(self) -> int:
        """Over the whole job."""
        return max((part.peak_reserved_bytes for part in self.parts), default=0)


def decode_run(document: dict[str, Any]) -> ExactRun:
    """Return the run that ``dataclasses.asdict`` wrote."""
    parts = tuple(Part(**part) for part in document["parts"])
    return ExactRun(**{**document, "parts": parts, "notes": tuple(document["notes"])})
