"""From PyTorch's profile and its allocation history to one list of what was allocated where.

The history has every request of the allocator, in order and with the bytes asked for; the
profile has the operators, and each allocation inside the one that made it. The n-th
allocation at an address is the same in both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch._C._profiler import _EventType

from dnnmem_tune.frontends.torch.emulated.ranges import CONVOLUTION, MODULE, OPTIMIZER
from dnnmem_tune.ir.trace import Phase

_BACKWARD_NODE = "autograd::engine::evaluate_function: "
_FACTORIES = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "resize_")
)
"""Operators that only allocate for another one, which names the allocation where there is one."""


@dataclass(slots=True)
class Call:
    """One call of an operator that allocated something."""

    name: str
    path: str
    phase: Phase
    number: int
    """In the order in which calls are read."""

    last: Place | None = None
    """Its latest allocation."""


@dataclass(slots=True)
class Place:
    """Where an allocation was made."""

    call: Call
    time: int
    convolution: int = -1
    """Number of the convolution whose workspace it is."""


@dataclass(slots=True)
class Profile:
    """What the event tree says."""

    places: dict[int, list[Place]] = field(default_factory=lambda: defaultdict(list))
    """Address -> its allocations, in order."""

    num_operations: int = 0


@dataclass(slots=True)
class _Context:
    call: Call | None
    path: str
    phase: Phase


def read_profile(roots: Iterable[Any]) -> Profile:
    """Return what the profiler's event tree says about allocations on the first card."""
    profile = Profile()
    reader = _Reader(profile)
    # Roots of several threads, each in order: a forward operator comes before the node it makes.
    for root in sorted(roots, key=lambda event: event.start_time_ns):
        reader.visit(root, _Context(None, "", Phase.FORWARD))
    for places in profile.places.values():
        places.sort(key=lambda place: place.time)
    return profile


class _Reader:
    """Walks the tree; what an operator belongs to is handed down to what it calls."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._path_of_sequence: dict[int, str] = {}
        self._num_calls = 0

    def visit(self, root: Any, context: _Context) -> None:
        stack = [(root, context)]
        while stack:
            event, context = stack.pop()
            if event.tag == _EventType.TorchOp:
                context = self._enter(event, context)
            elif event.tag == _EventType.Allocation:
                self._allocate(event, context)
            stack += [(child, context) for child in reversed(event.children)]

    def _enter(self, event: Any, context: _Context) -> _Context:
        name: str = event.name
        if name.startswith("aten::"):
            return self._enter_operator(name, event, context)
        if name.startswith(MODULE):
            return _Context(None, name[len(MODULE) :], context.phase)
        if name == OPTIMIZER:
            return _Context(None, "", Phase.OPTIMIZER)
        if name.startswith(_BACKWARD_NODE):
            path = self._path_of_sequence.get(event.extra_fields.sequence_number, "")
            return _Context(None, path, Phase.BACKWARD)
        if name.startswith(CONVOLUTION) and context.call is not None and context.call.last is not None:
            # The latest allocation before cuDNN runs is the workspace, if the convolution took one.
            context.call.last.convolution = int(name[len(CONVOLUTION) :])
        return context

    def _enter_operator(self, name: str, event: Any, context: _Context) -> _Context:
        self.profile.num_operations += 1
        if context.call is not None and name in _FACTORIES:
            return context
        if context.path and context.phase is Phase.FORWARD:
            self._path_of_sequence.setdefault(event.extra_fields.sequence_number, context.path)
        return _Context(self._call(name, context), context.path, context.phase)

    def _allocate(self, event: Any, context: _Context) -> None:
        fields = event.extra_fields
        if fields.alloc_size <= 0 or fields.device.type != "cuda" or fields.device.index != 0:
            return
        call = context.call or self._call("python", context)
        call.last = Place(call, event.start_time_ns)
        self.profile.places[fields.ptr].append(call.last)

    def _call(self, name: str, context: _Context) -> Call:
        self._num_calls += 1
        return Call(name, context.path, context.phase, self._num_calls)
