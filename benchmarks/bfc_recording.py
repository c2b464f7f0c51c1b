"""Record what TensorFlow's own BFC allocator does with random requests, for ``tests/allocators/test_bfc.py``.

    python benchmarks/bfc_recording.py tests/recorded/bfc_allocator_2.21.0.json.gz

The allocator is the one that serves GPUs; here it serves the CPU (``TF_CPU_ALLOCATOR_USE_BFC``), and
its own log says which address each request got. Needs ``tensorflow-cpu``.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

NUM_SEQUENCES = 520
LIMIT_MIB = 900

_ALLOCATE = re.compile(r"\] AllocateRaw \S+  (\d+) (0x[0-9a-f]+)$")
_FREE = re.compile(r"\] DeallocateRaw \S+ (\d+)$")
_REGION = re.compile(r"\] Allocated memory at (0x[0-9a-f]+) to (0x[0-9a-f]+)")


def sequences(seed: int) -> None:
    """Run random requests; every tensor is an allocation of its own."""
    import tensorflow as tf

    draw = random.Random(seed)
    seen: set[int] = set()
    for _ in range(NUM_SEQUENCES // 4):
        live: list[object] = []
        for _ in range(draw.randint(5, 40)):
            if live and draw.random() < 0.45:
                live.pop(draw.randrange(len(live)))
                continue
            largest = draw.choice((2_000, 200_000, 4 << 20, 40 << 20))
            # The log names what is freed by its size only, so no two requests have the same.
            nbytes = next(n for _ in range(99) if (n := draw.randint(5, largest)) not in seen)
            seen.add(nbytes)
            live.append(tf.raw_ops.Empty(shape=[nbytes], dtype=tf.uint8, init=False))
        live.clear()


def record(seed: int) -> dict[str, object]:
    """Return the events of one process and where each request was placed."""
    with tempfile.NamedTemporaryFile("w+") as log:
        subprocess.run(
            [sys.executable, __file__, "--run", str(seed)],
            check=True,
            stderr=log,
            env={
                **os.environ,
                "TF_CPU_ALLOCATOR_USE_BFC": "true",
                "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(LIMIT_MIB),
                "TF_CPP_VMODULE": "bfc_allocator=3",
                "TF_CPP_MIN_LOG_LEVEL": "0",
            },
        )
        log.seek(0)
        return parse(log.read().splitlines())


def parse(lines: list[str]) -> dict[str, object]:
    """Return events as in ``MemoryTrace.events``, sizes, and ``[region, offset]`` of each request."""
    regions: list[tuple[int, int]] = []
    sizes: list[int] = []
    places: list[list[int]] = []
    events: list[int] = []
    live: dict[int, list[int]] = {}
    for line in lines:
        if found := _REGION.search(line):
            regions.append((int(found[1], 16), int(found[2], 16)))
        elif found := _ALLOCATE.search(line):
            address, nbytes = int(found[2], 16), int(found[1])
            region = next(i for i, (start, stop) in enumerate(regions) if start <= address < stop)
            live.setdefault(nbytes, []).append(len(sizes))
            events.append(len(sizes))
            sizes.append(nbytes)
            places.append([region, address - regions[region][0]])
        elif found := _FREE.search(line):
            (storage,) = live.pop(int(found[1]))
            events.append(~storage)
    return {
        "limit_bytes": LIMIT_MIB << 20,
        "regions": [stop - start for start, stop in regions],
        "events": events,
        "sizes": sizes,
        "places": places,
    }


def main() -> None:
    """Record four processes."""
    if sys.argv[1] == "--run":
        sequences(int(sys.argv[2]))
        return
    document = {"tensorflow": "2.21.0", "sequences": NUM_SEQUENCES, "processes": [record(s) for s in range(4)]}
    with gzip.GzipFile(Path(sys.argv[1]), "wb", mtime=0) as stream:
        stream.write(json.dumps(document, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
