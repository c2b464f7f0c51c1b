"""Traces of single operators beside those recorded from the CUDA build; see benchmarks/record_operators.py."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
from pathlib import Path
from types import ModuleType
from typing import Any

from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.torch.client import TorchRecorder
from dnnmem_tune.ir.trace import MemoryTrace
from dnnmem_tune.operators.scratch import KernelTarget, SizeTable

PROGRAMS = Path(__file__).parent / "programs"
RECORDED = Path(__file__).parents[2] / "recorded"
BATCH_SIZE = 2
TARGETS = {
    "T4": KernelTarget(compute_capability=(7, 5), num_sms=40, threads_per_sm=1024),
    "A100-40GB": KernelTarget(compute_capability=(8, 0), num_sms=108, threads_per_sm=2048),
    "H100-80GB": KernelTarget(compute_capability=(9, 0), num_sms=132, threads_per_sm=2048),
}


def rows_of(name: str) -> list[dict[str, Any]]:
    """Return the rows of one recorded file."""
    rows: list[dict[str, Any]] = json.loads((RECORDED / f"kernel_{name}.json").read_text())["rows"]
    return rows


def load_program(name: str) -> ModuleType:
    """Return one of the programs as a module."""
    spec = importlib.util.spec_from_file_location(f"program_{name}", PROGRAMS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def trace_all(program: str, card: str) -> dict[str, list[int]]:
    """Return the events of every case of a program on one card, traced by a single worker."""
    module, target = load_program(program), TARGETS[card]
    cases: dict[str, dict[str, Any]] = module.CASES
    if hasattr(module, "TYPES"):
        cases = {
            f"{name}, {dtype}": {**params, "dtype": dtype}
            for dtype, (name, params) in itertools.product(module.TYPES, cases.items())
        }
    requests = [
        RecordRequest(
            workload="", batch_size=BATCH_SIZE, params=params, num_steps=1, num_sms=target.num_sms,
            compute_capability=target.compute_capability,
        )
        for params in cases.values()
    ]  # fmt: skip
    recorder = TorchRecorder(
        f"{PROGRAMS / program}.py:build", compute_capability=target.compute_capability, total_bytes=80 << 30,
        num_sms=target.num_sms, time_limit=120.0, memory_limit=4 << 30,
    )  # fmt: skip
    try:
        traces = recorder.record(requests)
    finally:
        recorder.close()
    return {name: events_of(trace, target) for name, trace in zip(cases, traces, strict=True)}


def events_of(trace: MemoryTrace, target: KernelTarget) -> list[int]:
    """Return requests in bytes, and frees as negative bytes, without what takes nothing."""
    sizes = SizeTable(trace, target).at(BATCH_SIZE)
    signed = (sizes[code] if code >= 0 else -sizes[~code] for code in trace.events)
    return [nbytes for nbytes in signed if nbytes]


def in_canonical_order(events: list[int]) -> list[int]:
    """Sort each run of frees, whose order no allocator can tell, and leave out those at the end."""
    ordered: list[int] = []
    run: list[int] = []
    for nbytes in events:
        if nbytes < 0:
            run.append(nbytes)
            continue
        ordered += sorted(run)
        run.clear()
        ordered.append(nbytes)
    return ordered
