"""A verdict's sign, its words, and that it never holds NaN."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from dnnmem_tune.decisions.verdict import Verdict, VerdictState
from dnnmem_tune.units import GIB, MIB


def test_fitting_verdict_names_peak_spare_and_limit() -> None:
    """Three numbers, all of device memory."""
    verdict = Verdict.fits(peak_bytes=3 * GIB, limit_bytes=4 * GIB)

    assert verdict.state is VerdictState.FITS
    assert verdict.headroom_bytes == GIB
    assert verdict.violation == -0.25
    assert verdict.reason == "needs 3.00 GiB of device memory, 1.00 GiB below the limit of 4.00 GiB"


def test_exceeding_verdict_names_what_is_missing() -> None:
    """How far above is what a user acts on."""
    verdict = Verdict.exceeds(peak_bytes=5 * GIB, limit_bytes=4 * GIB)

    assert verdict.headroom_bytes == -GIB
    assert verdict.violation == 0.25
    assert (
        verdict.reason
        == "would take 5.00 GiB of device memory if there were room, 1.00 GiB above the limit of 4.00 GiB"
    )


def test_fragmented_card_is_a_violation_although_the_peak_is_at_the_limit() -> None:
    """An optimizer reads zero as feasible, so an out-of-memory error must never be zero."""
    verdict = Verdict.exceeds(peak_bytes=4 * GIB, limit_bytes=4 * GIB)

    assert verdict.violation is not None
    assert verdict.violation > 0
    assert "in pieces too small to use" in verdict.reason


def test_unknown_has_no_violation_and_keeps_its_reason() -> None:
    """Unknown is no number."""
    verdict = Verdict.unknown("no memory rule for aten::foo", peak_bytes=MIB, limit_bytes=GIB)

    assert verdict.violation is None
    assert verdict.headroom_bytes == GIB - MIB
    assert verdict.reason == "no memory rule for aten::foo"


@given(peak=st.integers(0, 1 << 62), limit=st.integers(0, 1 << 62), state=st.sampled_from(["fits", "exceeds"]))
def test_violation_is_finite_and_its_sign_is_the_verdict(peak: int, limit: int, state: str) -> None:
    """NaN or infinity in a constraint corrupts a whole study."""
    verdict = (Verdict.fits if state == "fits" else Verdict.exceeds)(peak_bytes=peak, limit_bytes=limit)

    assert verdict.violation is not None
    assert math.isfinite(verdict.violation)
    assert (verdict.violation <= 0) == (verdict.state is VerdictState.FITS)
