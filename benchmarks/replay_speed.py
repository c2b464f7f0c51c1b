"""How long one estimate's replay takes: the allocator alone, in pure Python.

    python benchmarks/replay_speed.py [--depth 50] [--repeat 50]

The events are those of three training steps of a ResNet of the given depth with Adam, written
down from its layers: parameters, saved activations, gradients as autograd frees them, and the
optimizer's temporaries. It prints the best time of many, in milliseconds and per event.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from dnnmem_tune.allocators.caching import CachingAllocator
from dnnmem_tune.allocators.exact import ExactAllocator
from dnnmem_tune.allocators.policy import CachingPolicy
from dnnmem_tune.units import GIB

NUM_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
BATCH = 32


def convolutions(depth: int) -> list[tuple[int, int]]:
    """Return weight and output elements of each convolution of a bottleneck ResNet on 224 x 224 images."""
    found = [(3 * 64 * 49, BATCH * 64 * 112**2)]
    channels = 64
    for stage, blocks in enumerate(NUM_BLOCKS[depth]):
        width, side = 64 << stage, 56 >> stage
        for block in range(blocks):
            pixels = BATCH * side**2
            found += [(channels * width, pixels * width), (width * width * 9, pixels * width)]
            found += [(width * width * 4, pixels * width * 4)]
            if block == 0:
                found.append((channels * width * 4, pixels * width * 4))
            channels = width * 4
    return found


class Trace:
    """Events and sizes, under construction."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.sizes: list[int] = []

    def allocate(self, num_elements: int) -> int:
        """Add an allocation of float32 elements and return its storage."""
        self.sizes.append(num_elements * 4)
        self.events.append(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def free(self, storage: int) -> None:
        """Add a free."""
        self.events.append(~storage)


def training_steps(depth: int, num_steps: int = 3) -> Trace:
    """Return the events of some steps, each with a convolution, a batch norm and a ReLU per layer."""
    trace = Trace()
    layers = convolutions(depth)
    parameters = [elements for weights, output in layers for elements in (weights, 64, 64)]
    for elements in parameters:
        trace.allocate(elements)
    moments: list[int] = []
    for _ in range(num_steps):
        saved = []
        for _weights, output in layers:
            saved.append([trace.allocate(output), trace.allocate(64), trace.allocate(64), trace.allocate(output)])
        gradient = trace.allocate(layers[-1][1])
        gradients = []
        for (weights, output), storages in zip(reversed(layers), reversed(saved), strict=True):
            normalized = trace.allocate(output)
            gradients += [trace.allocate(64), trace.allocate(64)]
            trace.free(gradient)
            gradient = trace.allocate(output)
            gradients.append(trace.allocate(weights))
            trace.free(normalized)
            for storage in storages:
                trace.free(storage)
        trace.free(gradient)
        moments = moments or [trace.allocate(elements) for elements in parameters * 2]
        temporaries = [trace.allocate(elements) for elements in parameters]
        for storage in temporaries + gradients:
            trace.free(storage)
    return trace


def best_time(action: Callable[[], object], repeat: int) -> float:
    """Return the shortest of some runs, in seconds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=50, choices=NUM_BLOCKS)
    parser.add_argument("--repeat", type=int, default=50)
    arguments = parser.parse_args()
    trace = training_steps(arguments.depth)
    events, sizes = trace.events, trace.sizes
    expandable = CachingPolicy(expandable_segments=True)
    allocators: dict[str, Callable[[], CachingAllocator | ExactAllocator]] = {
        "exact": ExactAllocator,
        "caching": lambda: CachingAllocator(capacity_bytes=40 * GIB),
        "caching, nearly full": lambda: CachingAllocator(capacity_bytes=5 * GIB),
        "caching, expandable": lambda: CachingAllocator(expandable, 40 * GIB),
    }
    print(f"ResNet-{arguments.depth}, 3 steps with Adam, batch {BATCH}: {len(events)} events")
    for name, make in allocators.items():
        seconds = best_time(lambda make=make: make().run(events, sizes), arguments.repeat)  # type: ignore[misc]
        print(f"{name:22s} {seconds * 1e3:6.2f} ms  {seconds / len(events) * 1e9:5.0f} ns an event")


if __name__ == "__main__":
    main()
