"""What would help, in the order in which to try it."""

from __future__ import annotations

from dnnmem_tune.decisions.remedies import Change, combined, judge_changes
from dnnmem_tune.decisions.verdict import Verdict

HALF = Change(text="half precision", params={"precision": "fp16"})
CHECKPOINTING = Change(text="activation checkpointing", params={"checkpointing": True})
CARD = Change(text="a larger card", gpu="A100-80GB")
VERDICTS = {
    HALF.text: Verdict.exceeds(peak_bytes=120, limit_bytes=100),
    CHECKPOINTING.text: Verdict.fits(peak_bytes=90, limit_bytes=100),
    CARD.text: Verdict.fits(peak_bytes=170, limit_bytes=800),
}


def test_what_is_enough_comes_first_then_what_needs_least() -> None:
    """The first line is the one to follow."""
    remedies = judge_changes([CARD, HALF, CHECKPOINTING], lambda change: VERDICTS[change.text])

    assert [remedy.change for remedy in remedies] == [CHECKPOINTING, CARD, HALF]
    assert [remedy.enough for remedy in remedies] == [True, True, False]


def test_what_cannot_be_judged_is_no_advice() -> None:
    """A change under which the workload does not run, or of unknown effect, is left out."""
    answers = {HALF.text: None, CHECKPOINTING.text: Verdict.unknown("no rule"), CARD.text: VERDICTS[CARD.text]}

    remedies = judge_changes([HALF, CHECKPOINTING, CARD], lambda change: answers[change.text])

    assert [remedy.change for remedy in remedies] == [CARD]


def test_changes_of_parameters_combine_and_a_card_does_not() -> None:
    """Two changes of a workload can be made at once."""
    both = combined([HALF, CARD, CHECKPOINTING])

    assert both is not None
    assert both.text == "half precision and activation checkpointing"
    assert both.params == {"precision": "fp16", "checkpointing": True}
    assert combined([HALF, CARD]) is None
