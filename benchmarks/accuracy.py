"""Estimates against PyTorch's own allocator: every case of ``cases.toml``, as a table.

    python benchmarks/accuracy.py                      all cases, a summary at the end
    python benchmarks/accuracy.py --split develop      only those that may be looked into
    python benchmarks/accuracy.py resnet gpt           cases whose name contains a word

The truth is ``tests/recorded/torch_oracle.json``: the real CUDA build of PyTorch on stub
CUDA libraries, convolution workspace none. Errors are (estimate - truth) / truth.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from dnnmem_tune.allocators.caching import CachingAllocator
from dnnmem_tune.allocators.policy import CachingPolicy
from dnnmem_tune.allocators.replay import replay
from dnnmem_tune.config import find_device
from dnnmem_tune.errors import DnnMemError
from dnnmem_tune.frontends import Tracing, open_workload
from dnnmem_tune.frontends.traced import TracedWorkload
from dnnmem_tune.operators.scratch import SizeTable

ROOT = Path(__file__).resolve().parent.parent
METRICS = ("requested", "allocated", "reserved")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--split", choices=["develop", "held_out"])
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    answers = json.loads((ROOT / "tests/recorded/torch_oracle.json").read_text())["cases"]
    cases = tomllib.loads((ROOT / "benchmarks/cases.toml").read_text())["cases"]
    chosen = [
        case
        for case in cases
        if (not arguments.words or any(word in case["name"] for word in arguments.words))
        and arguments.split in (None, case["split"])
        and case["name"] in answers
    ]
    rows = []
    # One worker serves all cases of a workload on a card: torch and the workload are imported once.
    chosen.sort(key=lambda case: (case["workload"], case["gpu"]))
    for _worker, group in itertools.groupby(chosen, key=lambda case: (case["workload"], case["gpu"])):
        same = list(group)
        with open_case(same[0], answers[same[0]["name"]]["total_memory"]) as workload:
            for case in same:
                rows.append(score(workload, case, answers[case["name"]]))
                print(render(rows[-1]), flush=True)
    summarise(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return 0


def open_case(case: dict[str, Any], total_bytes: int) -> TracedWorkload:
    """Return the workload of a case, without its hyperparameters."""
    device = find_device(case["gpu"])
    tracing = Tracing(
        compute_capability=device.compute_capability,
        total_bytes=total_bytes,
        num_sms=device.num_sms,
        recorder="fake",
    )
    reference = f"{ROOT / 'benchmarks/workloads' / case['workload']}.py:build"
    return open_workload(reference, params={}, tracing=tracing)


def score(workload: TracedWorkload, case: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Return the relative errors of one case."""
    row: dict[str, Any] = {"name": case["name"], "split": case["split"], "gpu": case["gpu"]}
    started = time.perf_counter()
    try:
        estimated = estimate(workload, case, answer["total_memory"])
    except DnnMemError as error:
        return {**row, "error": str(error)}
    row["seconds"] = time.perf_counter() - started
    for metric in METRICS:
        truth = answer["peak"][metric]
        row[metric] = (estimated[metric] - truth) / truth
    row["reserved_bytes"] = answer["peak"]["reserved"]
    return row


def estimate(workload: TracedWorkload, case: dict[str, Any], total_bytes: int) -> dict[str, int]:
    """Trace one case at its own batch size and replay it on its card."""
    device = find_device(case["gpu"])
    params = {key: None if value == "none" else value for key, value in case["params"].items()}
    trace = workload.with_params(params).exact_trace(case["batch_size"])
    sizes = SizeTable(trace, device.kernel_target()).at(case["batch_size"])
    capacity = total_bytes - device.context_bytes
    optional = [storage.optional for storage in trace.storages]
    timeline = replay(trace.events, sizes, CachingAllocator(CachingPolicy(), capacity), optional=optional)
    peak = timeline.peak
    return {
        "requested": peak.requested_bytes,
        "allocated": peak.allocated_bytes,
        "reserved": peak.reserved_bytes,
    }


def render(row: dict[str, Any]) -> str:
    """Return one line of the table."""
    head = f"{row['name']:34} {row['gpu']:10}"
    if "error" in row:
        return f"{head} {row['error'][:150]}"
    errors = " ".join(f"{100 * row[metric]:+8.2f}" for metric in METRICS)
    return f"{head} {errors} %   {row['reserved_bytes'] / 2**20:8.0f} MiB {row['seconds']:6.1f} s"


def summarise(rows: list[dict[str, Any]]) -> None:
    """Print medians and shares for each metric and split."""
    failed = [row["name"] for row in rows if "error" in row]
    print(f"\n{len(rows)} cases, {len(failed)} could not be estimated: {', '.join(failed) or '-'}")
    for split in ("develop", "held_out"):
        for metric in METRICS:
            errors = sorted(abs(row[metric]) for row in rows if metric in row and row["split"] == split)
            if not errors:
                continue
            within = sum(error <= 0.015 for error in errors) / len(errors)
            p95 = errors[min(len(errors) - 1, int(0.95 * len(errors)))]
            print(
                f"{split:9} {metric:10} "
                f"median {100 * statistics.median(errors):6.3f} %   95th {100 * p95:6.2f} %   "
                f"worst {100 * errors[-1]:6.2f} %   within 1.5 %: {100 * within:5.1f} %   exact: "
                f"{sum(error == 0 for error in errors)} of {len(errors)}"
            )


if __name__ == "__main__":
    sys.exit(main())
