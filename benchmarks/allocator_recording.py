r"""Record what PyTorch's own CUDA caching allocator does, so that tests can compare without it.

Random sequences of allocations and frees run through ``libc10_cuda.so`` of an installed CUDA
build of PyTorch. No GPU is needed: the CUDA libraries are replaced by stubs, whose ``cudaMalloc``
hands out made-up, descending addresses up to a capacity. After each event the block's place and
the allocator's counters go into a digest; ``tests/allocators/test_recorded.py`` makes the same
sequences from the same seeds, and must come to the same digests.

    python benchmarks/allocator_recording.py STUB_LIBRARIES caching_allocator_2.14.1.json.gz
    python benchmarks/allocator_recording.py STUB_LIBRARIES caching_allocator_2.11.0.json.gz \
        --sequences 100 --configurations 0 1 2 3 4 5 6 7 8 9 10

``STUB_LIBRARIES`` is a folder with ``build.json`` (whose ``order`` lists the libraries to load) and
stubs that read the card's total and context from FAKEGPU_TOTAL and FAKEGPU_CONTEXT, in bytes. Run
it with the interpreter that has the CUDA build of PyTorch. It takes about ten minutes.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import gzip
import hashlib
import json
import os
import random
import subprocess
import sys
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20

CONFIGURATIONS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:40,max_non_split_rounding_mb:60",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:1,16:8,256:4,>:2]",
    "large_segment_size_mb:45,max_split_size_mb:50",
    "per_process_memory_fraction:0.5",
    "per_process_memory_fraction:0.6,garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.3",
    "expandable_segments:True,per_process_memory_fraction:0.7,roundup_power2_divisions:8",
    "per_process_memory_fraction:0.4,throw_on_cudamalloc_oom:True,max_split_size_mb:30",
)
"""Values of ``PYTORCH_ALLOC_CONF``."""

NUM_SEQUENCES = 1000
"""For each configuration and card, unless told otherwise."""

DIGEST_BYTES = 6


@dataclass(frozen=True, slots=True)
class Card:
    """A card as the stubs present it."""

    name: str
    total_bytes: int
    context_bytes: int

    @property
    def capacity_bytes(self) -> int:
        """What ``cudaMalloc`` can hand out."""
        return self.total_bytes - self.context_bytes


CARDS = (
    Card("600 MiB", 600 * MIB, 0),
    Card("4 GiB", 4096 * MIB, 101 * MIB),
    Card("RTX 3090", 25447170048, 270 * MIB),
)


def random_sequence(seed: int, capacity_bytes: int) -> tuple[list[int], list[int]]:
    """Return events, coded as in ``MemoryTrace.events``, and sizes in bytes.

    Half of the sizes come from a small palette, as layers repeat; frees are half the time those
    of the youngest storage, as temporaries are. The largest sizes grow with the card, so that
    some sequences of each card run out of memory and others never release their cache.
    """
    rng = random.Random(seed)
    largest = rng.choice((8 * MIB, 64 * MIB, 200 * MIB, capacity_bytes // 16, capacity_bytes // 5))
    palette = [rng.randrange(1, largest) for _ in range(10)]
    events: list[int] = []
    sizes: list[int] = []
    live: list[int] = []
    for _ in range(rng.choice((20, 40, 80, 120, 200))):
        if live and rng.random() < 0.46:
            events.append(~live.pop(-1 if rng.random() < 0.5 else rng.randrange(len(live))))
            continue
        kind = rng.random()
        if kind < 0.5:
            sizes.append(rng.choice(palette))
        elif kind < 0.65:
            sizes.append(rng.randrange(4096))
        elif kind < 0.85:
            sizes.append(rng.randrange(1, 3 * MIB))
        else:
            sizes.append(rng.randrange(1, largest))
        live.append(len(sizes) - 1)
        events.append(len(sizes) - 1)
    return events, sizes


class Transcript:
    """What an allocator did, event by event, independent of its addresses.

    A block's place is the number of its segment, in order of appearance, and its offset there.
    """

    def __init__(self) -> None:
        self._segments: dict[int, int] = {}
        self._numbers = array("q")

    def add(
        self,
        place: tuple[int, int] | None,
        allocated_bytes: int,
        reserved_bytes: int,
        requested_bytes: int,
        retries: int,
    ) -> None:
        """Add an event's outcome.

        Args:
            place: The start of the segment and the address of the block that was allocated; ``None``
                for a free, for an empty storage, and for a request that was not served.
            allocated_bytes: After the event, as the three others.
            reserved_bytes: See above.
            requested_bytes: See above.
            retries: See above.

        """
        segment = offset = -1
        if place is not None:
            start, address = place
            segment = self._segments.setdefault(start, len(self._segments))
            offset = address - start
        self._numbers.extend((segment, offset, allocated_bytes, reserved_bytes, requested_bytes, retries))

    def digest(self) -> bytes:
        """Return a digest of all events."""
        return hashlib.blake2b(self._numbers.tobytes(), digest_size=DIGEST_BYTES).digest()


def sequence_seeds(configuration: int, card: int, num_sequences: int) -> range:
    """Return the seed of each sequence; no two runs share one."""
    first = (configuration * len(CARDS) + card) * NUM_SEQUENCES
    return range(first, first + num_sequences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stub_libraries", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--sequences", type=int, default=NUM_SEQUENCES, help="for each configuration and card")
    parser.add_argument(
        "--configurations", type=int, nargs="+", default=range(len(CONFIGURATIONS)), metavar="NUMBER"
    )
    parser.add_argument("--run", nargs=2, type=int, metavar=("CONFIGURATION", "CARD"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        configuration, card = arguments.run
        _record_run(arguments.stub_libraries, configuration, card, arguments.sequences)
        return
    runs = [
        _record_in_process(arguments.stub_libraries, configuration, card, arguments.sequences)
        for configuration in arguments.configurations
        for card in range(len(CARDS))
    ]
    document = {
        "provenance": f"libc10_cuda of PyTorch {runs[0]['torch']} on a stub CUDA runtime, descending addresses",
        "made_by": "benchmarks/allocator_recording.py",
        "runs": [{key: value for key, value in run.items() if key != "torch"} for run in runs],
    }
    with gzip.GzipFile(arguments.output, "wb", mtime=0) as file:
        file.write(json.dumps(document).encode())


def _record_in_process(
    stub_libraries: Path, configuration: int, card: int, num_sequences: int
) -> dict[str, object]:
    """Record one configuration on one card in a process of its own, since both are read at its start."""
    environment = {
        **os.environ,
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTORCH_ALLOC_CONF": CONFIGURATIONS[configuration],
        "FAKEGPU_TOTAL": str(CARDS[card].total_bytes),
        "FAKEGPU_CONTEXT": str(CARDS[card].context_bytes),
    }
    command = [sys.executable, "-W", "ignore", __file__, str(stub_libraries), "-"]
    command += ["--sequences", str(num_sequences), "--run", str(configuration), str(card)]
    finished = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    run: dict[str, object] = json.loads(finished.stdout)
    print(
        f"{CONFIGURATIONS[configuration] or 'default':80s} {CARDS[card].name:10s}"
        f" events {run['events']}, retries {run['retries']}, out of memory {run['out_of_memory']}",
        file=sys.stderr,
    )
    return run


def _record_run(stub_libraries: Path, configuration: int, card: int, num_sequences: int) -> None:
    for name in json.loads((stub_libraries / "build.json").read_text())["order"]:
        ctypes.CDLL(str(stub_libraries / name), mode=ctypes.RTLD_GLOBAL)
    import torch

    torch.cuda.init()  # type: ignore[no-untyped-call]
    # An emptied allocator is as good as a new one, except that expandable segments keep address ranges;
    # and the stubs never hand out an address twice, so that no process may run for long.
    seeds = sequence_seeds(configuration, card, num_sequences)
    num_together = 1 if "expandable" in CONFIGURATIONS[configuration] else 10
    digests = bytearray()
    totals = [0, 0, 0]
    for first in range(0, len(seeds), num_together):
        for digest, *counts in _run_in_child(seeds[first : first + num_together], CARDS[card]):
            digests += bytes.fromhex(digest)
            totals = [total + count for total, count in zip(totals, counts, strict=True)]
    run = {
        "torch": torch.__version__,
        "configuration": CONFIGURATIONS[configuration],
        "card": CARDS[card].name,
        "first_seed": seeds[0],
        "events": totals[0],
        "retries": totals[1],
        "out_of_memory": totals[2],
        "digests": base64.b64encode(digests).decode(),
    }
    print(json.dumps(run))


def _run_in_child(seeds: range, card: Card) -> list[tuple[str, int, int, int]]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps([_run_sequence(seed, card) for seed in seeds]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        results = [(digest, events, retries, failures) for digest, events, retries, failures in json.load(pipe)]
    os.waitpid(child, 0)
    return results


def _run_sequence(seed: int, card: Card) -> tuple[str, int, int, int]:
    """Run one sequence; return its digest and its numbers of events, retries and failed requests."""
    import torch

    allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
    free = torch._C._cuda_cudaCachingAllocator_raw_delete
    torch._C._cuda_resetAccumulatedMemoryStats(0)
    events, sizes = random_sequence(seed, card.capacity_bytes)
    transcript = Transcript()
    out_of_memory = 0
    starts: list[int] = []  # of all segments, ascending
    addresses: dict[int, int] = {}
    for code in events:
        place = None
        if code < 0:
            if ~code in addresses:
                free(addresses.pop(~code))
        elif sizes[code]:
            try:
                address = addresses[code] = allocate(sizes[code], 0)
                place = _segment_start(starts, address, sizes[code], card), address
            except torch.OutOfMemoryError:
                out_of_memory += 1
        stats = torch._C._cuda_memoryStats(0)
        allocated, reserved, requested = (
            stats[name]["all"]["current"] for name in ("allocated_bytes", "reserved_bytes", "requested_bytes")
        )
        transcript.add(place, allocated, reserved, requested, stats["num_alloc_retries"])
    for address in addresses.values():
        free(address)
    torch._C._cuda_emptyCache()
    assert torch._C._cuda_memoryStats(0)["reserved_bytes"]["all"]["current"] == 0
    return transcript.digest().hex(), len(events), stats["num_alloc_retries"], out_of_memory


def _segment_start(starts: list[int], address: int, nbytes: int, card: Card) -> int:
    """Return where the segment of a new block starts; ``starts`` holds those seen so far, ascending.

    The first block of a segment is at its start. A new segment lies below all others, or, if it is
    an address range for expandable segments that a failed request left behind, beyond the end of
    the one below it: ranges are an eighth longer than the card, in whole pages.
    """
    page = 2 * MIB if nbytes <= MIB else 20 * MIB
    longest = -(-(card.total_bytes + card.total_bytes // 8) // page) * page
    place = bisect_right(starts, address) - 1
    if place < 0 or address - starts[place] >= longest:
        place += 1
        starts.insert(place, address)
    return starts[place]


if __name__ == "__main__":
    main()
