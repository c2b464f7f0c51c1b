"""Move what PyTorch takes in the first step from the build to the place where it is taken.

A graph has what stays from the start on. PyTorch makes optimizer states in the first update, and a cuBLAS
workspace with the first matrix product of either thread; where these lie among the blocks of the first step
decides how much memory is reserved.
"""

from __future__ import annotations

from dataclasses import replace

from dnnmem_tune.ir.trace import Category, MemoryTrace, Phase

FORWARD_HANDLE, BACKWARD_HANDLE = "cuBLAS workspace, forward", "cuBLAS workspace, backward"
"""Names of the workspaces of PyTorch's two threads."""

MATRIX_PRODUCTS = frozenset({"Gemm", "MatMul", "com.microsoft.FusedMatMul", "Einsum"})
"""Operators that call cuBLAS."""


def taken_when_used(trace: MemoryTrace) -> MemoryTrace:
    """Return the trace with optimizer states and cuBLAS workspaces taken in the first step."""
    update = _first_update(trace)
    calls = {
        FORWARD_HANDLE: _first_call(trace, Phase.FORWARD),
        BACKWARD_HANDLE: _first_call(trace, Phase.BACKWARD),
    }
    moved: dict[int, int] = {}
    for index, storage in enumerate(trace.storages):
        is_state = storage.category is Category.OPTIMIZER_STATE
        place = update if is_state else calls.get(trace.operations[storage.operation].name)
        if place is not None:
            moved[index] = place
    waiting: dict[int, list[int]] = {}
    for index, place in moved.items():
        waiting.setdefault(place, []).append(index)
    events: list[int] = []
    new_place: list[int] = []
    for position, code in enumerate((*trace.events, None)):
        events.extend(waiting.get(position, ()))
        new_place.append(len(events) - len(waiting.get(position, ())))
        if code is not None and code not in moved:
            events.append(code)
    marks = tuple(replace(mark, event=new_place[mark.event]) for mark in trace.marks)
    return replace(trace, events=tuple(events), marks=marks)


def _first_call(trace: MemoryTrace, phase: Phase) -> int | None:
    names = MATRIX_PRODUCTS if phase is Phase.FORWARD else {f"{name}Gradient" for name in MATRIX_PRODUCTS}
    for position, code in enumerate(trace.events):
        if code >= 0:
            operation = trace.operations[trace.storages[code].operation]
            if operation.phase is phase and operation.name in names:
                return position
    return None


def _first_update(trace: MemoryTrace) -> int:
    """Return where the first update begins: before its first temporary, or before gradients are given back."""
    ends = [mark.event for mark in trace.marks]
    build, step = ends[0], ends[1]
    for position in range(build, step):
        code = trace.events[position]
        if code >= 0 and trace.operations[trace.storages[code].operation].phase is Phase.OPTIMIZER:
            return position
    position = step
    while position > build and trace.events[position - 1] < 0:
        position -= 1
    return position
