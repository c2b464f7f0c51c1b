"""Reads of device values by the host: where they are, and whether a branch follows.

On the emulated card every such value is zero. What a program does with it can only change
what is recorded where it decides a branch or a size.
"""

from __future__ import annotations

import dis
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePath
from types import CodeType, FrameType

_THIS_PACKAGE = "/dnnmem_tune/"
_LIBRARIES = ("/site-packages/", "/lib/python3", "<", _THIS_PACKAGE)


@dataclass(slots=True)
class HostValues:
    """Counts reads by the line of the user's code that caused them."""

    places: Counter[str] = field(default_factory=Counter)
    branches: set[str] = field(default_factory=set)
    """Places whose line decides a branch."""

    def note(self, _nbytes: int) -> None:
        """Count one read; called in the thread that reads."""
        frame: FrameType | None = sys._getframe(1)
        innermost: FrameType | None = None
        while frame is not None:
            name = frame.f_code.co_filename
            if not name.startswith("<") and _THIS_PACKAGE not in name:
                innermost = innermost or frame
                if not any(part in name for part in _LIBRARIES):
                    self._count(frame)
                    return
            frame = frame.f_back
        if innermost is not None:
            self._count(innermost)

    def _count(self, frame: FrameType) -> None:
        place = f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"
        self.places[place] += 1
        if decides_a_branch(frame.f_code, frame.f_lasti):
            self.branches.add(place)

    def notes(self) -> tuple[str, ...]:
        """One sentence on what cannot be trusted; none where nothing hangs on a value."""
        if not self.branches:
            return ()
        return (
            f"a branch hangs on a value of the device, which is zero here: {', '.join(sorted(self.branches))}",
        )


@lru_cache(maxsize=4096)
def decides_a_branch(code: CodeType, offset: int) -> bool:
    """Whether the instruction at ``offset`` is a conditional jump, or one follows it on the same line."""
    line = None
    for instruction in dis.get_instructions(code):
        number = instruction.positions.lineno if instruction.positions else None
        if instruction.offset == offset:
            line = number
        is_conditional = "JUMP" in instruction.opname and "IF" in instruction.opname
        if line is not None and number == line and is_conditional:
            return True
    return False
