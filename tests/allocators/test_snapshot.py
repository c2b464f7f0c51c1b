"""A simulated run in PyTorch's snapshot format: it adds up, and PyTorch's own viewer reads it."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dnnmem_tune.allocators.policy import CachingPolicy
from dnnmem_tune.allocators.snapshot import memory_snapshot
from dnnmem_tune.ir.size import Polynomial
from dnnmem_tune.ir.trace import Category, MemoryTrace, Operation, Phase, Storage
from dnnmem_tune.units import MIB

TORCH = importlib.util.find_spec("torch")
SIZES = [1000, 30 * MIB, 5 * MIB, 0, 40 * MIB]
TRACE = MemoryTrace(
    storages=tuple(Storage(Polynomial(size), Category.ACTIVATION, operation=0) for size in SIZES),
    operations=(Operation("aten::addmm", "encoder.layer.0", Phase.FORWARD, step=1),),
    events=(0, 1, 2, ~1, 3, 4),
)
POLICIES = {"default": CachingPolicy(), "expandable": CachingPolicy(expandable_segments=True)}


def actions(snapshot: dict[str, Any]) -> list[str]:
    """Return what happened, in order."""
    return [entry["action"] for entry in snapshot["device_traces"][0]]


def test_history_tells_what_the_allocator_did() -> None:
    """Small, large and shared segments; on 70 MiB the 40 MiB need the 30 back first."""
    snapshot = memory_snapshot(TRACE, SIZES, capacity_bytes=70 * MIB)

    assert actions(snapshot) == [
        *("segment_alloc", "alloc") * 3,
        *("free_requested", "free_completed"),
        *("segment_free", "segment_alloc", "alloc"),
    ]
    assert [segment["total_size"] // MIB for segment in snapshot["segments"]] == [2, 20, 40]


def test_a_run_out_of_memory_ends_with_it() -> None:
    """The last entry says what was asked for and what was left."""
    snapshot = memory_snapshot(TRACE, SIZES, capacity_bytes=60 * MIB)
    last = snapshot["device_traces"][0][-1]

    assert (last["action"], last["size"], last["device_free"]) == ("oom", 40 * MIB, 38 * MIB)


def test_expandable_segments_are_mapped_page_by_page() -> None:
    """30 MiB map 40, the 5 behind it need nothing; the rest of the 40 MiB later map two pages more."""
    snapshot = memory_snapshot(TRACE, SIZES, POLICIES["expandable"], capacity_bytes=200 * MIB)
    mapped = [entry["size"] // MIB for entry in snapshot["device_traces"][0] if entry["action"] == "segment_map"]

    assert mapped == [2, 40, 40]
    assert {segment["is_expandable"] for segment in snapshot["segments"]} == {True}


def test_frames_name_operator_module_and_purpose() -> None:
    """What the viewer shows on a click."""
    snapshot = memory_snapshot(TRACE, SIZES)
    frames = snapshot["device_traces"][0][1]["frames"]

    assert [(frame["name"], frame["filename"]) for frame in frames] == [
        ("aten::addmm", "encoder.layer.0"),
        ("activation", "forward of step 1"),
    ]


@pytest.mark.parametrize("name", POLICIES)
def test_blocks_add_up_to_their_segments(name: str) -> None:
    """The sums that the viewer relies on, and requested bytes as they were asked for."""
    snapshot = memory_snapshot(TRACE, SIZES, POLICIES[name])

    for segment in snapshot["segments"]:
        blocks = segment["blocks"]
        used = [block for block in blocks if block["state"] == "active_allocated"]
        assert sum(block["size"] for block in blocks) == segment["total_size"]
        assert sum(block["size"] for block in used) == segment["allocated_size"] == segment["active_size"]
    requested = sum(segment["requested_size"] for segment in snapshot["segments"])
    assert requested == SIZES[0] + SIZES[2] + SIZES[4]


@pytest.mark.skipif(TORCH is None, reason="needs PyTorch's viewer")
@pytest.mark.parametrize("name", POLICIES)
def test_pytorch_reads_it(name: str, tmp_path: Path) -> None:
    """PyTorch's viewer sums up the segments, prints the history, and draws both timelines."""
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(memory_snapshot(TRACE, SIZES, POLICIES[name], capacity_bytes=60 * MIB)))
    pages = [tmp_path / "blocks.html", tmp_path / "segments.html"]

    stats = _memory_viz("stats", file)
    history = _memory_viz("trace", file)
    _memory_viz("trace_plot", file, "-o", pages[0])
    _memory_viz("segment_plot", file, "-o", pages[1])

    assert "total_allocated: 5.0MiB" in stats
    assert "[0:1000.0B]" in history
    assert "raise OutOfMemoryError # 40.0MiB requested" in history
    assert all("MemoryViz.js" in page.read_text() for page in pages)


def _memory_viz(*arguments: str | Path) -> str:
    """Run ``torch.cuda._memory_viz``, by its path since it needs nothing else of PyTorch."""
    assert TORCH is not None
    assert TORCH.origin is not None
    viewer = Path(TORCH.origin).parent / "cuda/_memory_viz.py"
    command = [sys.executable, str(viewer), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
