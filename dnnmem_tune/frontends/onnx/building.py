"""Write a trace down: operators, storages, and the order in which they come and go."""

from __future__ import annotations

from dnnmem_tune.ir.size import Polynomial, Size
from dnnmem_tune.ir.trace import Category, Coverage, Mark, MemoryTrace, Operation, Phase, Storage


class TraceBuilder:
    """A trace that is being written."""

    def __init__(self) -> None:
        self.storages: list[Storage] = []
        self.events: list[int] = []
        self._operations: list[Operation] = []
        self._marks: list[Mark] = []

    def begin(self, name: str, module: str, phase: Phase, step: int) -> None:
        """Say which operator requests what follows."""
        self._operations.append(Operation(name, module, phase, step))

    def allocate(self, size: int | Size, category: Category, *, optional: bool = False) -> int:
        """Request a storage and return its number; one of 0 bytes has a number too."""
        size = Polynomial(size) if isinstance(size, int) else size
        self.storages.append(Storage(size, category, len(self._operations) - 1, optional))
        self.events.append(len(self.storages) - 1)
        return len(self.storages) - 1

    def free(self, storage: int) -> None:
        """Give a storage back."""
        self.events.append(~storage)

    def mark(self, name: str) -> None:
        """End a part of the job."""
        self._marks.append(Mark(name, len(self.events)))

    def finish(self, *, coverage: Coverage, framework: str, recorder: str) -> MemoryTrace:
        """Return the trace."""
        return MemoryTrace(
            storages=tuple(self.storages),
            operations=tuple(self._operations),
            events=tuple(self.events),
            marks=tuple(self._marks),
            coverage=coverage,
            framework=framework,
            recorder=recorder,
        )
