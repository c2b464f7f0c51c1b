"""The simulation equals PyTorch's own allocator, event for event, on recorded random sequences.

``benchmarks/allocator_recording.py`` ran them through ``libc10_cuda.so`` and kept a digest of what
happened after each event: the block's segment and offset, allocated, reserved and requested
bytes, and the number of retries. Nothing of PyTorch is needed here.
"""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dnnmem_tune.allocators.caching import CachingAllocator
from dnnmem_tune.allocators.policy import CachingPolicy, TieBreak

ROOT = Path(__file__).parents[2]
NUM_SEQUENCES = {"2.14.1": 1000, "2.11.0": 100}
"""For each configuration and card, of the current rule and of that before PyTorch 2.12."""


def load_recording() -> ModuleType:
    """Import the script that made the recording, for its generator and its transcript."""
    spec = importlib.util.spec_from_file_location(
        "allocator_recording", ROOT / "benchmarks/allocator_recording.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def load_runs(release: str) -> list[dict[str, Any]]:
    """Return what was recorded of a release."""
    file = ROOT / f"tests/recorded/caching_allocator_{release}.json.gz"
    document = json.loads(gzip.decompress(file.read_bytes()))
    assert f"PyTorch {release}" in document["provenance"]
    runs: list[dict[str, Any]] = document["runs"]
    return runs


recording = load_recording()
CARDS = {card.name: card for card in recording.CARDS}
RUNS = [(release, run) for release in NUM_SEQUENCES for run in load_runs(release)]


def simulate(seed: int, policy: CachingPolicy, card: Any) -> tuple[bytes, int, int, int]:
    """Return a sequence's digest, its number of events, retries and failed requests."""
    events, sizes = recording.random_sequence(seed, card.capacity_bytes)
    allocator = CachingAllocator(policy, card.capacity_bytes, card.total_bytes)
    transcript = recording.Transcript()
    out_of_memory = 0
    for position, code in enumerate(events):
        out_of_memory += allocator.run(events, sizes, position, position + 1) == position
        place = allocator.place_of(code) if code >= 0 else None
        stats = allocator.stats
        transcript.add(
            place, stats.allocated_bytes, stats.reserved_bytes, stats.requested_bytes, allocator.num_retries
        )
    return transcript.digest(), len(events), allocator.num_retries, out_of_memory


@pytest.mark.parametrize(
    ("release", "run"),
    RUNS,
    ids=[f"{release}: {run['configuration'] or 'default'} on {run['card']}" for release, run in RUNS],
)
def test_every_event_equals_the_library(release: str, run: dict[str, Any]) -> None:
    """A differing digest is a bug here; the seed says in which sequence."""
    policy = replace(CachingPolicy.from_alloc_conf(run["configuration"]), tie_break=TieBreak.of_pytorch(release))
    digests = base64.b64decode(run["digests"])
    width = recording.DIGEST_BYTES
    num_sequences = len(digests) // width
    totals = [0, 0, 0]
    differing = []

    for number in range(num_sequences):
        seed = run["first_seed"] + number
        digest, *counts = simulate(seed, policy, CARDS[run["card"]])
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        if digest != digests[number * width : (number + 1) * width]:
            differing.append(seed)

    assert differing == []
    assert totals == [run["events"], run["retries"], run["out_of_memory"]]
    assert num_sequences == NUM_SEQUENCES[release]


@pytest.mark.parametrize("release", NUM_SEQUENCES)
def test_the_recording_covers_what_it_should(release: str) -> None:
    """Eight configurations or more on each of three cards, with retries and failures in each."""
    runs = [run for recorded, run in RUNS if recorded == release]

    assert len({run["configuration"] for run in runs}) >= 8
    assert {run["card"] for run in runs} == set(CARDS)
    assert len(runs) == len({run["configuration"] for run in runs}) * len(CARDS)
    assert all(run["retries"] > 0 and run["out_of_memory"] > 0 for run in runs)


def test_the_two_rules_for_ties_differ() -> None:
    """The comparison can fail: under the other rule the same sequences come to other digests."""
    ours = CachingPolicy(tie_break=TieBreak.OLDEST_SEGMENT)
    other = CachingPolicy(tie_break=TieBreak.LOWEST_ADDRESS)
    card = recording.CARDS[0]

    num_differing = sum(simulate(seed, ours, card)[0] != simulate(seed, other, card)[0] for seed in range(100))

    assert num_differing > 10
