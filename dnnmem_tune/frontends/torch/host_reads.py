"""Where a program reads values that a trace does not have."""

from __future__ import annotations

from collections import Counter

from dnnmem_tune.frontends.torch.user_frames import user_line


class HostReads:
    """Counts reads of device values by the line of the user's code that caused them."""

    def __init__(self) -> None:
        self.places: Counter[str] = Counter()
        self.bounded: Counter[str] = Counter()

    def note(self) -> None:
        """Count one read at the innermost line of user code."""
        self.places[user_line(2)] += 1

    def bound(self, operator: str) -> None:
        """Count one output whose size depends on values and was bounded from above."""
        self.bounded[operator] += 1
