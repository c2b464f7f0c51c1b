"""What a dry run tells. Imports no torch: both sides read these values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Ending(StrEnum):
    """How the user's program ended."""

    STEPS = "steps"
    """It reached the number of optimizer steps asked for and was stopped."""

    OUT_OF_MEMORY = "out of memory"
    """The card had no room for a request."""

    FINISHED = "finished"
    """It ended by itself before that."""

    RAISED = "raised"
    """It ended with an exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """The peaks of one phase of one card. All in bytes."""

    name: str
    """``build``, ``step 0 forward``, ``step 0 backward``, ``step 0 optimizer``, ..."""

    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of the user's program, and what ran there."""

    file: str
    line: int
    function: str
    """Empty where there is none."""

    source: str = ""
    """The line itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOutcome:
    """What one process of the program saw of its most used card."""

    pid: int

    rank: int
    """Of a distributed job; 0 for a single process."""

    num_local_ranks: int = 1
    """Processes of the job on this machine."""

    ending: Ending
    """How it ended."""

    message: str = ""
    """PyTorch's words where memory ran out; type and text of an exception."""

    place: Place | None = None
    """Where memory ran out, or where the exception came from."""

    num_steps: int = 0
    """Optimizer steps done."""

    phases: tuple[PhasePeak, ...] = ()

    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    """Of the allocator, over the whole run."""

    peak_device_bytes: int = 0
    """Of the card, with its context."""

    missing_bytes: int = 0
    """How much more than was free the card was asked for when memory ran out; the run as a whole may lack more."""

    peak_place: Place | None = None
    """Where the allocator's peak was reached."""

    peak_phase: str = ""

    num_retries: int = 0
    """How often the cache had to be emptied to go on."""

    host_reads: dict[str, int] = field(default_factory=dict)
    """Where values, which are zero, were read on the host."""

    notes: tuple[str, ...] = ()

    snapshot: str = ""
    """File with PyTorch's memory snapshot, where one was asked for."""


def decode_outcome(document: dict[str, Any]) -> ProcessOutcome:
    """Return the outcome that ``dataclasses.asdict`` wrote."""
    places = {
        name: Place(**document[name]) if document[name] is not None else None for name in ("place", "peak_place")
    }
    return ProcessOutcome(
        **{
            **document,
            **places,
            "ending": Ending(document["ending"]),
            "phases": tuple(PhasePeak(**phase) for phase in document["phases"]),
            "notes": tuple(document["notes"]),
        }
    )
