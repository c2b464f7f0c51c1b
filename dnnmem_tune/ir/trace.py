"""MemoryTrace: the ordered allocations and frees of a training job.

A trace is a value. It says what is requested from the GPU's allocator and when it is
given back, for every batch size at once; how the allocator answers is not its business,
and neither is how it was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from dnnmem_tune.ir.size import Size


class Category(StrEnum):
    """What a storage is for. DNNMem's Table 2, with the optimizer state it lacks."""

    WEIGHT = "weight"
    WEIGHT_GRADIENT = "weight gradient"
    OPTIMIZER_STATE = "optimizer state"
    INPUT = "input"
    BUFFER = "buffer"
    ACTIVATION = "activation"
    OUTPUT_GRADIENT = "output gradient"
    WORKSPACE = "workspace"
    TEMPORARY = "temporary"


class Phase(StrEnum):
    """Which part of the job an operator belongs to."""

    BUILD = "build"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of an operator."""

    name: str
    """As the framework names it, such as ``aten::addmm``."""

    module: str
    """Path of the module that called it (``encoder.layer.0.attention``); empty outside any."""

    phase: Phase

    step: int
    """Training step, from 0; -1 while the workload is built."""


@dataclass(frozen=True, slots=True)
class Storage:
    """One block of memory as it is requested; views and aliases share it."""

    size: Size
    """Bytes."""

    category: Category

    operation: int
    """Index into ``MemoryTrace.operations`` of the call that requested it."""

    optional: bool = False
    """Whether the job goes on without it when the allocator has no room (a convolution workspace)."""


@dataclass(frozen=True, slots=True)
class Allocate:
    """A storage is requested."""

    storage: int
    """Index into ``MemoryTrace.storages``."""


@dataclass(frozen=True, slots=True)
class Free:
    """A storage is given back."""

    storage: int
    """Index into ``MemoryTrace.storages``."""


Event = Allocate | Free


@dataclass(frozen=True, slots=True)
class Mark:
    """A named place between two events."""

    name: str
    """Such as ``build`` or ``step 2``; the mark stands where that part *ends*."""

    event: int
    """Number of events before the mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was seen and what is not known. Unknown is reported, never turned into a verdict."""

    num_operations: int = 0
    """Operator calls recorded."""

    unknown_operators: dict[str, int] = field(default_factory=dict)
    """Operators without a memory rule, with their number of calls; their outputs are counted all the same."""

    host_reads: dict[str, int] = field(default_factory=dict)
    """Where values were read on the host (``file.py:12``): they are placeholders in a trace."""

    bounded: dict[str, int] = field(default_factory=dict)
    """Operators whose output depends on values and was bounded from above (``aten::nonzero``)."""

    notes: tuple[str, ...] = ()
    """Anything else a reader should know, one sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTrace:
    """The events of one job and what they refer to."""

    storages: tuple[Storage, ...]

    operations: tuple[Operation, ...]

    events: tuple[int, ...]
    """Storage indices in order: ``i`` allocates storage ``i`` and ``~i`` (that is ``-i - 1``) frees it.

    Plain numbers, because an estimate replays thousands of them in milliseconds;
    ``iterate`` gives them as ``Allocate`` and ``Free``.
    """

    marks: tuple[Mark, ...] = ()

    coverage: Coverage = Coverage()

    framework: str = ""
    """Framework and release, such as ``torch 2.13.0``."""

    recorder: str = ""
    """How the trace was made: ``fake tensors``, ``emulated card``, ``graph``."""

    batch_sizes: tuple[int, ...] = ()
    """The batch sizes that were traced and checked."""

    def iterate(self) -> Iterator[Event]:
        """Yield the events as values.

        Yields:
            ``Allocate`` or ``Free``, in order.

        """
        for code in self.events:
            yield Allocate(code) if code >= 0 else Free(~code)

    def check(self) -> None:
        """Verify that the events can happen.

        Raises:
            ValueError: If a storage is allocated twice, freed before it is allocated or twice,
                or if an event or a storage refers to something that is not there.

        """
        state = [0] * len(self.storages)
        for position, code in enumerate(self.events):
            index = code if code >= 0 else ~code
            if index >= len(state):
                raise ValueError(f"event {position} names storage {index} of {len(state)}")
            expected = 0 if code >= 0 else 1
            if state[index] != expected:
                what = "allocates" if code >= 0 else "frees"
                raise ValueError(f"event {position} {what} storage {index} a second time or too early")
            state[index] += 1
        for index, storage in enumerate(self.storages):
            if not 0 <= storage.operation < len(self.operations):
                raise ValueError(f"storage {index} names operation {storage.operation} of {len(self.operations)}")
