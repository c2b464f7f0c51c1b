"""What would help a job that does not fit: each remedy re-estimated, none guessed.

Which parameters a workload takes, and what an estimate costs, is the caller's business: it
hands over the changes that are possible and a way to judge one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dnnmem_tune.decisions.verdict import Verdict, VerdictState


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that could be done differently."""

    text: str
    """What it is, for a person: ``half precision (precision='fp16')``."""

    params: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters to set; empty where the change is another batch or another card."""

    batch_size: int | None = None
    """Another batch size, where that is the change."""

    gpu: str | None = None
    """Another card, where that is the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change and its verdict."""

    change: Change

    verdict: Verdict

    @property
    def enough(self) -> bool:
        """Whether the job fits with this change alone."""
        return self.verdict.state is VerdictState.FITS


def judge_changes(changes: Iterable[Change], judge: Callable[[Change], Verdict | None]) -> tuple[Remedy, ...]:
    """Return the remedies, those that are enough first, then by the memory they leave needed.

    Args:
        changes: What could be done.
        judge: Change -> the verdict on the job with it; None where the workload does not run with it.

    Returns:
        Every change that could be judged; a change of unknown effect is left out, since it is no advice.

    """
    judged = ((change, judge(change)) for change in changes)
    remedies = [
        Remedy(change=change, verdict=verdict)
        for change, verdict in judged
        if verdict is not None and verdict.state is not VerdictState.UNKNOWN
    ]
    return tuple(sorted(remedies, key=lambda remedy: (not remedy.enough, remedy.verdict.peak_bytes or 0)))


def combined(changes: Iterable[Change]) -> Change | None:
    """Return all parameter changes as one; None where there are fewer than two."""
    chosen = [change for change in changes if change.params]
    if len(chosen) < 2:
        return None
    params = {name: value for change in chosen for name, value in change.params.items()}
    return Change(text=" and ".join(change.text for change in chosen), params=params)
