"""The emulated card against the recorded answers of PyTorch's own allocator, byte for byte.

    python benchmarks/emulator_equality.py --python PYTHON                 every case of cases.toml
    python benchmarks/emulator_equality.py --python PYTHON resnet gpt      cases whose name contains a word
    python benchmarks/emulator_equality.py --python PYTHON --max-batch     those of max_batch_cases.toml

PYTHON is an interpreter with the CUDA build of PyTorch and the packages that the answers were recorded
with (see "provenance" in tests/recorded/torch_oracle.json). With --traces every case is also recorded as a
trace and replayed in this package's allocator simulation.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import dnnmem_tune.operators.convolution  # noqa: F401 - registers its scratch rule
from dnnmem_tune.allocators.caching import CachingAllocator
from dnnmem_tune.allocators.policy import CachingPolicy
from dnnmem_tune.allocators.replay import replay
from dnnmem_tune.cli.dryrun import emulated_card
from dnnmem_tune.config import find_device
from dnnmem_tune.emulator.installation import find_installation
from dnnmem_tune.errors import DnnMemError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.torch.emulated.client import EmulatedRecorder
from dnnmem_tune.frontends.torch.emulated.exact import ExactRun
from dnnmem_tune.ir.trace import MemoryTrace
from dnnmem_tune.operators.scratch import SizeTable

ROOT = Path(__file__).resolve().parent.parent
RECORDED_WITH = {
    "T4": (15_835_660_288, 105),
    "A100-40GB": (42_505_273_344, 430),
    "H100-80GB": (84_929_347_584, 520),
}
"""Total bytes and context in MiB of the cards on which the answers were recorded."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--python", required=True)
    parser.add_argument("--traces", action="store_true")
    parser.add_argument("--max-batch", action="store_true")
    arguments = parser.parse_args()
    suffix, file = ("_maxbatch", "max_batch_cases") if arguments.max_batch else ("", "cases")
    answers = json.loads((ROOT / f"tests/recorded/torch_oracle{suffix}.json").read_text())["cases"]
    cases = [
        case
        for case in tomllib.loads((ROOT / f"benchmarks/{file}.toml").read_text())["cases"]
        if case["name"] in answers
        and (not arguments.words or any(word in case["name"] for word in arguments.words))
    ]
    num_equal = num_cases = 0
    for case, recorder in with_recorders(cases, arguments.python):
        check = check_max_batch if arguments.max_batch else check_peaks
        started = time.perf_counter()
        difference = check(case, answers[case["name"]], recorder, traces=arguments.traces)
        seconds = time.perf_counter() - started
        num_cases += 1
        num_equal += not difference
        print(f"{case['name']:40} {case['gpu']:10} {seconds:6.2f} s  {difference or 'equal'}", flush=True)
    print(f"{num_equal} of {num_cases} equal")
    return num_equal != num_cases


def with_recorders(cases: list[dict[str, Any]], python: str) -> Iterator[tuple[dict[str, Any], EmulatedRecorder]]:
    """Give each case with a recorder; cases of one workload on one card share it."""
    installation = find_installation(python)

    def key(case: dict[str, Any]) -> tuple[str, str]:
        return case["workload"], case["gpu"]

    for (workload, gpu), group in groupby(sorted(cases, key=key), key):
        card = emulated_card(find_device(gpu))
        total_bytes, context_mib = RECORDED_WITH[gpu]
        recorder = EmulatedRecorder(
            str(ROOT / "benchmarks" / "workloads" / f"{workload}.py"),
            card=replace(card, total_bytes=total_bytes, context_bytes=context_mib << 20),
            installation=installation,
        )
        for case in group:
            yield case, recorder
        recorder.close()


def request(case: dict[str, Any], batch_size: int) -> RecordRequest:
    params = {key: None if value == "none" else value for key, value in case["params"].items()}
    return RecordRequest(workload=case["workload"], batch_size=batch_size, params=params)


def check_peaks(case: dict[str, Any], answer: dict[str, Any], recorder: EmulatedRecorder, *, traces: bool) -> str:
    """Return the first difference, or nothing."""
    asked = request(case, case["batch_size"])
    (run,) = recorder.run([asked])
    if isinstance(run, DnnMemError):
        return f"error: {run}"
    expected = [answer["peak_in_build"], *answer["peak_per_step"]]
    for part, peaks in zip(run.parts, expected, strict=False):
        for metric, found in (("allocated", part.peak_allocated_bytes), ("reserved", part.peak_reserved_bytes)):
            if found != peaks[metric]:
                return (
                    f"{part.name}: {found} {metric}, recorded {peaks[metric]} ({found / peaks[metric] - 1:+.3%})"
                )
    if len(run.parts) != len(expected) or run.fits != (answer["out_of_memory_in"] is None):
        return f"ends otherwise: {run.out_of_memory or 'fits'}, recorded {answer['out_of_memory_in'] or 'fits'}"
    return check_trace(asked, run, recorder) if traces and run.fits else ""


def check_trace(asked: RecordRequest, run: ExactRun, recorder: EmulatedRecorder) -> str:
    """Replay a trace of the same job, and compare with what the allocator reported."""
    (trace,) = recorder.attempt([asked])
    if not isinstance(trace, MemoryTrace):
        return f"no trace: {trace}"
    target = find_device("A100-40GB").kernel_target()
    allocator = CachingAllocator(CachingPolicy(), recorder.card.total_bytes - recorder.card.context_bytes)
    peak = replay(trace.events, SizeTable(trace, target).at(asked.batch_size), allocator).peak
    if (peak.allocated_bytes, peak.reserved_bytes) == (run.peak_allocated_bytes, run.peak_reserved_bytes):
        return ""
    return (
        f"the trace replays to {peak.allocated_bytes / run.peak_allocated_bytes - 1:+.3%} allocated, "
        f"{peak.reserved_bytes / run.peak_reserved_bytes - 1:+.3%} reserved"
    )


def check_max_batch(
    case: dict[str, Any], answer: dict[str, Any], recorder: EmulatedRecorder, *, traces: bool
) -> str:
    """Compare every batch size that was tried when the answer was recorded."""
    sizes = [trial["batch_size"] for trial in answer["trials"]]
    for trial, run in zip(answer["trials"], recorder.run([request(case, size) for size in sizes]), strict=True):
        if isinstance(run, DnnMemError):
            return f"batch {trial['batch_size']}: error: {run}"
        if run.fits != (trial["out_of_memory_in"] is None):
            return f"batch {trial['batch_size']}: {run.out_of_memory or 'fits'}, recorded the opposite"
        if run.fits and run.peak_reserved_bytes != trial["peak_reserved"]:
            found, expected = run.peak_reserved_bytes, trial["peak_reserved"]
            return f"batch {trial['batch_size']}: reserved {found}, recorded {expected}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
