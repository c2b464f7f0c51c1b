"""From one recorded run to a ``MemoryTrace``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dnnmem_tune.frontends.torch.emulated.convolutions import MARKER_BYTES
from dnnmem_tune.frontends.torch.emulated.profile import Call, Place, Profile
from dnnmem_tune.frontends.torch.emulated.ranges import MARK_BYTES, Owned
from dnnmem_tune.ir.size import Polynomial, Scratch, Size
from dnnmem_tune.ir.trace import Category, Coverage, Mark, MemoryTrace, Operation, Phase, Storage

_PRODUCTS = frozenset(
    f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "addmv", "addbmm", "_addmm_activation")
)


_OUTSIDE = Place(Call("python", "", Phase.FORWARD, 0), 0)
"""Where an allocation is made that no operator asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was recorded."""

    history: Sequence[Mapping[str, Any]]
    """PyTorch's allocation history of the first card (``_snapshot()["device_traces"][0]``)."""

    profile: Profile
    parts: Sequence[tuple[str, int]]
    """Name of each part of the run, and the mark at its end."""

    owned: Sequence[Owned]
    scratches: Sequence[Scratch]
    """Of the convolutions, by number."""

    host_reads: Mapping[str, int]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Storage:
    size: Size
    place: Place
    optional: bool
    born: int
    """Position in the history."""

    died: int
    owner: tuple[Category, str] | None = None


def make_trace(run: Run) -> MemoryTrace:
    """Return the trace of a run, with constant sizes and the scratch rules of its convolutions.

    Raises:
        ValueError: If history and profile do not tell of the same allocations.

    """
    return _Maker(run).make()


@dataclass(slots=True)
class _Maker:
    run: Run
    storages: list[_Storage] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    owners_at: dict[int, list[Owned]] = field(default_factory=dict)
    """Position in the history -> what belonged to whom there."""

    ends: list[int] = field(default_factory=list)
    """Position in the history of the end of each part."""

    marks: list[Mark] = field(default_factory=list)

    def make(self) -> MemoryTrace:
        positions = self._positions_of_marks()
        for owned in self.run.owned:
            self.owners_at.setdefault(positions[owned.mark], []).append(owned)
        self.ends = [positions[mark] for _name, mark in self.run.parts]
        self._replay_history()
        operations, operation_of = self._operations()
        first_backward = self._next_backward()
        return MemoryTrace(
            storages=tuple(
                Storage(
                    storage.size, self._category(storage, first_backward), operation_of[index], storage.optional
                )
                for index, storage in enumerate(self.storages)
            ),
            operations=tuple(operations),
            events=tuple(_in_canonical_order(self.events)),
            marks=tuple(self.marks),
            coverage=Coverage(
                num_operations=self.run.profile.num_operations,
                host_reads=dict(self.run.host_reads),
                notes=self.run.notes,
            ),
            framework=f"torch {torch.__version__}",
            recorder="emulated card",
        )

    def _positions_of_marks(self) -> list[int]:
        return [
            position
            for position, entry in enumerate(self.run.history)
            if entry["action"] == "alloc" and entry["size"] == MARK_BYTES
        ]

    def _replay_history(self) -> None:
        live: dict[int, int] = {}
        places = self._places()
        ends = list(zip(self.ends, self.run.parts, strict=True))
        for position, entry in enumerate([*self.run.history, {"action": "end"}]):
            for owned in self.owners_at.get(position, ()):
                if owned.address in live and self.storages[live[owned.address]].owner is None:
                    self.storages[live[owned.address]].owner = (owned.category, owned.path)
            while ends and ends[0][0] <= position:
                self.marks.append(Mark(ends.pop(0)[1][0], len(self.events)))
            match entry["action"]:
                case "alloc" if entry["size"] != MARK_BYTES:
                    live[entry["addr"]] = len(self.storages)
                    self.events.append(len(self.storages))
                    self.storages.append(self._storage(entry, places.get(position, _OUTSIDE), position))
                case "free_completed" if entry["addr"] in live:
                    index = live.pop(entry["addr"])
                    self.storages[index].died = position
                    self.events.append(~index)

    def _places(self) -> dict[int, Place]:
        """Position in the history -> where that allocation was made.

        The profiler hears of an allocation just after the history does, on the same clock. It
        misses some that are made outside any operator.
        """
        requests: dict[int, list[int]] = {}
        for position, entry in enumerate(self.run.history):
            if entry["action"] == "alloc":
                requests.setdefault(entry["addr"], []).append(position)
        places: dict[int, Place] = {}
        for address, made in self.run.profile.places.items():
            positions = requests.get(address, [])
            if len(positions) == len(made):
                places.update(zip(positions, made, strict=True))
                continue
            times = [self.run.history[position]["time_us"] for position in positions]
            for place in made:
                number = bisect_right(times, place.time // 1000 + 1) - 1
                if number < 0:
                    raise ValueError(
                        f"the allocation history lacks an allocation at {address:#x} that was profiled"
                    )
                places[positions[number]] = place
        return places

    def _storage(self, entry: Mapping[str, Any], place: Place, position: int) -> _Storage:
        never = len(self.run.history) + 1
        if entry["size"] == MARKER_BYTES and place.convolution >= 0:
            return _Storage(self.run.scratches[place.convolution], place, True, position, never)
        return _Storage(Polynomial(entry["size"]), place, False, position, never)

    def _operations(self) -> tuple[list[Operation], list[int]]:
        operations: list[Operation] = []
        known: dict[int, int] = {}
        operation_of: list[int] = []
        for storage in self.storages:
            call = storage.place.call
            if call.number not in known:
                known[call.number] = len(operations)
                step = self._part(storage.born) - 1
                phase = Phase.BUILD if step < 0 and call.phase is Phase.FORWARD else call.phase
                path = call.path or (storage.owner[1] if storage.owner else "")
                operations.append(Operation(call.name, path, phase, step))
            operation_of.append(known[call.number])
        return operations, operation_of

    def _part(self, position: int) -> int:
        return sum(end <= position for end in self.ends)

    def _next_backward(self) -> dict[int, int]:
        """Part -> position of its first allocation in backward."""
        first: dict[int, int] = {}
        for storage in self.storages:
            if storage.place.call.phase is Phase.BACKWARD:
                first.setdefault(self._part(storage.born), storage.born)
        return first

    def _category(self, storage: _Storage, first_backward: dict[int, int]) -> Category:
        if isinstance(storage.size, Scratch):
            return Category.WORKSPACE
        if storage.owner is not None:
            return storage.owner[0]
        call, part = storage.place.call, self._part(storage.born)
        if call.name in _PRODUCTS and self._part(storage.died) > part + 1:
            return Category.WORKSPACE  # cuBLAS: taken at the first product of a thread, kept for good
        match call.phase:
            case Phase.BACKWARD:
                return Category.OUTPUT_GRADIENT
            case _ if call.name == "aten::ones_like" and not call.path:
                return Category.OUTPUT_GRADIENT  # of the loss, made before backward starts
            case Phase.OPTIMIZER:
                return Category.TEMPORARY
            case _ if part == 0:
                return Category.BUFFER
            case _ if not call.path and call.name.startswith(_INPUTS):
                return Category.INPUT
            case _:
                saved = storage.died > first_backward.get(part, storage.died)
                return Category.ACTIVATION if saved else Category.TEMPORARY


_INPUTS = ("aten::_to_copy", "aten::copy_", "aten::rand", "aten::zeros", "aten::ones", "aten::full", "aten::empty",
           "aten::arange", "aten::lift_fresh", "python")  # fmt: skip
"""How a batch gets to the device: a copy, or a synthetic batch made there."""


def _in_canonical_order(events: list[int]) -> list[int]:
    """Sort each run of consecutive frees: leaving autocast frees its weight casts in hash order."""
    ordered: list[int] = []
    run: list[int] = []
    for code in events:
        if code < 0:
            run.append(code)
            continue
        ordered += sorted(run, reverse=True)
        run.clear()
        ordered.append(code)
    return ordered + sorted(run, reverse=True)
