"""Memory events of real GPUs, from public profiler traces, replay as the traces report.

The traces begin in a running job, so what lay in the cache before is not known. What must
agree: the allocated total after each event, under an allocator that adds nothing to the
recorded block sizes; and the reserved total, which no longer grows once a step was seen.
"""

from __future__ import annotations

import csv
import gzip
from itertools import accumulate
from pathlib import Path

import pytest

from dnnmem_tune.allocators.caching import CachingAllocator
from dnnmem_tune.allocators.exact import ExactAllocator
from dnnmem_tune.allocators.policy import CachingPolicy, TieBreak
from dnnmem_tune.allocators.replay import Completed, history, replay

TRACES = Path(__file__).parents[1] / "recorded/traces"
V100_16GB = 16945512448


def read(name: str) -> list[dict[str, int]]:
    """Return a trace's rows."""
    with gzip.open(TRACES / name, "rt") as file:
        return [{key: int(value) for key, value in row.items()} for row in csv.DictReader(file)]


def to_events(rows: list[dict[str, int]], repeats: int = 1) -> tuple[list[int], list[int]]:
    """Return events and sizes; a free belongs to the block at its address, or else to the youngest of its size."""
    events: list[int] = []
    sizes: list[int] = []
    for _ in range(repeats):
        live: dict[int, list[int]] = {}
        for row in rows:
            nbytes = row["bytes"]
            blocks = live.setdefault(row.get("addr", abs(nbytes)), [])
            if nbytes > 0:
                blocks.append(len(sizes))
                events.append(len(sizes))
                sizes.append(nbytes)
            else:
                events.append(~blocks.pop())
    return events, sizes


def test_hta_trace_reports_the_totals_that_replay_gives() -> None:
    """26,770 events of a V100: the total allocated after each one is the recorded one, to the byte."""
    rows = read("hta_v100.csv.gz")
    before = rows[0]["total_allocated"] - rows[0]["bytes"]

    stats = history(*to_events(rows), ExactAllocator())

    assert len(rows) == 26770
    assert [before + entry.allocated_bytes for entry in stats] == [row["total_allocated"] for row in rows]


@pytest.mark.parametrize("tie_break", TieBreak)
def test_hta_trace_needs_no_more_than_was_reserved(tie_break: TieBreak) -> None:
    """The trace's reserved total is constant; replayed again and again, the simulation's is, too."""
    rows = read("hta_v100.csv.gz")
    (recorded_reserved,) = {row["total_reserved"] for row in rows}
    before = rows[0]["total_allocated"] - rows[0]["bytes"]
    recorded_peak = max(row["total_allocated"] for row in rows) - before
    events, sizes = to_events(rows, repeats=2)
    allocator = CachingAllocator(CachingPolicy(tie_break=tie_break))

    allocator.run(events, sizes, 0, len(rows))
    reserved = allocator.stats.reserved_bytes
    allocator.run(events, sizes, len(rows))

    assert allocator.peak.reserved_bytes == reserved <= recorded_reserved - before
    # A block may keep up to 1 MiB that the recorded one, in another segment, did not have.
    assert recorded_peak <= allocator.peak.allocated_bytes <= recorded_peak * 1.01


def test_kineto_steps_reuse_what_the_first_reserved() -> None:
    """Six equal steps of ResNet-50: the first reserves, the others find all of it in the cache."""
    rows = read("kineto_resnet50.csv.gz")
    events, sizes = to_events(rows)
    recorded_peak = max(accumulate(row["bytes"] for row in rows))
    step = len(rows) // 6
    allocator = CachingAllocator(capacity_bytes=V100_16GB)

    allocator.run(events, sizes, 0, step)
    reserved = allocator.stats.reserved_bytes
    timeline = replay(events[step:], sizes, allocator)

    assert [row["bytes"] for row in rows[:step]] == [row["bytes"] for row in rows[step : 2 * step]]
    assert timeline.outcome == Completed()
    assert timeline.peak.reserved_bytes == reserved
    assert timeline.final.allocated_bytes == sum(row["bytes"] for row in rows) == 0
    assert recorded_peak <= timeline.peak.allocated_bytes <= recorded_peak * 1.01
