"""A trace as JSON-able values, for the worker's pipe and for the cache on disk.

Columns instead of objects: a training step has thousands of storages, and three columns
of numbers decode ten times faster than thousands of small objects.
"""

from __future__ import annotations

from typing import Any

from dnnmem_tune.ir.size import Polynomial, Scratch, Size
from dnnmem_tune.ir.trace import Category, Coverage, Mark, MemoryTrace, Operation, Phase, Storage

FORMAT = 1
"""Raised whenever the meaning of an encoded trace changes; older ones are then rebuilt."""


def encode_trace(trace: MemoryTrace) -> dict[str, Any]:
    """Return ``trace`` as dictionaries, lists, strings and numbers."""
    coverage = trace.coverage
    return {
        "format": FORMAT,
        "framework": trace.framework,
        "recorder": trace.recorder,
        "batch_sizes": list(trace.batch_sizes),
        "events": list(trace.events),
        "marks": [[mark.name, mark.event] for mark in trace.marks],
        "operations": [[op.name, op.module, op.phase.value, op.step] for op in trace.operations],
        "storages": [
            [_encode_size(storage.size), storage.category.value, storage.operation, int(storage.optional)]
            for storage in trace.storages
        ],
        "coverage": {
            "num_operations": coverage.num_operations,
            "unknown_operators": dict(coverage.unknown_operators),
            "host_reads": dict(coverage.host_reads),
            "bounded": dict(coverage.bounded),
            "notes": list(coverage.notes),
        },
    }


def decode_trace(document: Any) -> MemoryTrace:
    """Return the trace that ``encode_trace`` wrote.

    Raises:
        ValueError: If the document is of another format, incomplete or inconsistent.

    """
    found = document.get("format") if isinstance(document, dict) else None
    if found is not None and found != FORMAT:
        raise ValueError(f"the trace has format {found!r}, this release reads {FORMAT}")
    try:
        categories = {category.value: category for category in Category}
        phases = {phase.value: phase for phase in Phase}
        trace = MemoryTrace(
            storages=tuple(
                Storage(_decode_size(size), categories[category], operation, bool(optional))
                for size, category, operation, optional in document["storages"]
            ),
            operations=tuple(
                Operation(name, module, phases[phase], step)
                for name, module, phase, step in document["operations"]
            ),
            events=tuple(document["events"]),
            marks=tuple(Mark(name, event) for name, event in document["marks"]),
            coverage=Coverage(
                num_operations=document["coverage"]["num_operations"],
                unknown_operators=document["coverage"]["unknown_operators"],
                host_reads=document["coverage"]["host_reads"],
                bounded=document["coverage"]["bounded"],
                notes=tuple(document["coverage"]["notes"]),
            ),
            framework=document["framework"],
            recorder=document["recorder"],
            batch_sizes=tuple(document["batch_sizes"]),
        )
        trace.check()
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"this is no encoded trace: {error!r}") from error
    return trace


def _encode_size(size: Size) -> list[Any]:
    if isinstance(size, Polynomial):
        return [size.constant, size.linear, size.quadratic]
    return [size.rule, size.tag, [[arg.constant, arg.linear, arg.quadratic] for arg in size.arguments]]


def _decode_size(row: list[Any]) -> Size:
    if isinstance(row[0], str):
        return Scratch(row[0], tuple(Polynomial(*arg) for arg in row[2]), row[1])
    return Polynomial(*row)
