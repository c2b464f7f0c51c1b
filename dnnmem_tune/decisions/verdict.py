"""Does it fit: a verdict that is never a guess and never NaN.

*Fits* means that the replay of the job at the card's capacity, lowered by the safety that was
asked for, completes. *Exceeds* means that it ran out of memory there. *Unknown* means that
neither can be said, and is kept apart: it is for the caller to decide what to do with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from dnnmem_tune.units import format_bytes

if TYPE_CHECKING:
    from dnnmem_tune.estimate.report import MemoryEstimate

_SMALLEST_VIOLATION = 2.0**-40
"""A full but fragmented card can fail with its peak below its limit; the sign still has to say so."""


class VerdictState(StrEnum):
    """The three answers there are."""

    FITS = "fits"
    EXCEEDS = "exceeds"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether one configuration fits one card.

    Example:
        >>> verdict = Verdict.exceeds(peak_bytes=3 << 30, limit_bytes=2 << 30)
        >>> verdict.reason, verdict.violation
        ('would take 3.00 GiB of device memory if there were room, 1.00 GiB above the limit of 2.00 GiB', 0.5)

    """

    state: VerdictState

    peak_bytes: int | None
    """Device memory the job needs (what ``nvidia-smi`` would show), in bytes; None where unknown.

    Above the limit it is what the job would take on a card without an end.
    """

    limit_bytes: int | None
    """Device memory the job may take, in bytes: the card's usable capacity less the safety."""

    reason: str
    """One sentence without the subject, for a person."""

    @classmethod
    def fits(cls, *, peak_bytes: int, limit_bytes: int) -> Verdict:
        """Return that the job completes within its limit."""
        need, limit = format_bytes(peak_bytes), format_bytes(limit_bytes)
        spare = format_bytes(max(0, limit_bytes - peak_bytes))
        reason = f"needs {need} of device memory, {spare} below the limit of {limit}"
        return cls(state=VerdictState.FITS, peak_bytes=peak_bytes, limit_bytes=limit_bytes, reason=reason)

    @classmethod
    def exceeds(cls, *, peak_bytes: int, limit_bytes: int) -> Verdict:
        """Return that the job runs out of memory at its limit."""
        limit = format_bytes(limit_bytes)
        if peak_bytes > limit_bytes:
            missing = format_bytes(peak_bytes - limit_bytes)
            peak = format_bytes(peak_bytes)
            reason = f"would take {peak} of device memory if there were room, {missing} above the limit of {limit}"
        else:
            reason = f"runs out of memory at the limit of {limit}: what is free is in pieces too small to use"
        return cls(state=VerdictState.EXCEEDS, peak_bytes=peak_bytes, limit_bytes=limit_bytes, reason=reason)

    @classmethod
    def unknown(cls, reason: str, *, peak_bytes: int | None = None, limit_bytes: int | None = None) -> Verdict:
        """Return that neither can be said, and why."""
        return cls(state=VerdictState.UNKNOWN, peak_bytes=peak_bytes, limit_bytes=limit_bytes, reason=reason)

    @property
    def headroom_bytes(self) -> int | None:
        """Bytes left below the limit; negative where it is exceeded, None where unknown."""
        if self.peak_bytes is None or self.limit_bytes is None:
            return None
        return self.limit_bytes - self.peak_bytes

    @property
    def violation(self) -> float | None:
        """How far above the limit: ``peak / limit - 1``; None where unknown, and never NaN.

        At most zero where the job fits and above zero where it does not, so that it can be handed
        to an optimizer as the value of a constraint as it is.
        """
        if self.state is VerdictState.UNKNOWN or self.peak_bytes is None or self.limit_bytes is None:
            return None
        # A limit below one byte leaves nothing to compare with, and dividing by it would not be finite.
        excess = self.peak_bytes / max(1, self.limit_bytes) - 1.0
        return min(0.0, excess) if self.state is VerdictState.FITS else max(_SMALLEST_VIOLATION, excess)


def verdict_of(estimate: MemoryEstimate) -> Verdict:
    """Return the verdict on an estimate."""
    peak_bytes, limit_bytes = estimate.peak_device_bytes, estimate.limit_bytes
    match estimate.fits:
        case None:
            return Verdict.unknown(estimate.verdict_reason, peak_bytes=peak_bytes, limit_bytes=limit_bytes)
        case True:
            return Verdict.fits(peak_bytes=peak_bytes, limit_bytes=limit_bytes)
        case False:
            verdict = Verdict.exceeds(peak_bytes=peak_bytes, limit_bytes=limit_bytes)
            return replace(verdict, reason=f"{verdict.reason} ({estimate.verdict_reason})")
