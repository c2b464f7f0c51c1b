"""Where the two PyTorch recorders differ, and which operator it comes from.

    python benchmarks/recorder_differences.py --python PYTHON              every case of cases.toml
    python benchmarks/recorder_differences.py --python PYTHON resnet gpt   cases whose name contains a word

PYTHON has the CUDA build of PyTorch; the fake recorder runs in this interpreter. Both traces are replayed in
the same allocator simulation. For a case that differs by more than --threshold, the bytes that are live at the
peak of either trace are summed by operator, and the largest differences are named: what the fake recorder's
rules have to learn.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import Counter
from pathlib import Path

import dnnmem_tune.operators  # noqa: F401 - registers the scratch rules
from dnnmem_tune.allocators.caching import CachingAllocator
from dnnmem_tune.allocators.policy import CachingPolicy
from dnnmem_tune.allocators.replay import Timeline, replay
from dnnmem_tune.cli.dryrun import emulated_card
from dnnmem_tune.config import find_device
from dnnmem_tune.emulator.installation import find_installation
from dnnmem_tune.errors import DnnMemError
from dnnmem_tune.estimate.devices import DeviceProfile
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.torch.client import TorchRecorder
from dnnmem_tune.frontends.torch.emulated.client import EmulatedRecorder
from dnnmem_tune.ir.trace import MemoryTrace
from dnnmem_tune.operators.scratch import SizeTable
from dnnmem_tune.units import format_bytes

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--python", required=True)
    parser.add_argument("--threshold", type=float, default=0.005)
    arguments = parser.parse_args()
    installation = find_installation(arguments.python)
    for case in tomllib.loads((ROOT / "benchmarks/cases.toml").read_text())["cases"]:
        if arguments.words and not any(word in case["name"] for word in arguments.words):
            continue
        device = find_device(case["gpu"])
        workload = str(ROOT / "benchmarks" / "workloads" / f"{case['workload']}.py")
        params = {key: None if value == "none" else value for key, value in case["params"].items()}
        request = RecordRequest(
            workload=workload,
            batch_size=case["batch_size"],
            params=params,
            compute_capability=device.compute_capability,
            total_bytes=device.total_bytes,
            num_sms=device.num_sms,
        )
        recorders = (
            EmulatedRecorder(workload, card=emulated_card(device), installation=installation),
            TorchRecorder(
                workload,
                compute_capability=device.compute_capability,
                total_bytes=device.total_bytes,
                num_sms=device.num_sms,
            ),
        )
        try:
            emulated, fake = (recorder.record([request])[0] for recorder in recorders)
        except DnnMemError as error:
            print(f"{case['name']:40} {error}", flush=True)
            continue
        finally:
            for recorder in recorders:
                recorder.close()
        report(case["name"], emulated, fake, device, case["batch_size"], arguments.threshold)
    return 0


def report(
    name: str, emulated: MemoryTrace, fake: MemoryTrace, device: DeviceProfile, batch_size: int, threshold: float
) -> None:
    """Print the differences in peaks, and the operators behind them."""
    (true, true_live), (found, found_live) = (at_peak(trace, device, batch_size) for trace in (emulated, fake))
    allocated = found.peak.allocated_bytes / true.peak.allocated_bytes - 1
    reserved = found.peak.reserved_bytes / true.peak.reserved_bytes - 1
    print(f"{name:40} fake {allocated:+8.3%} allocated {reserved:+8.3%} reserved", flush=True)
    if abs(allocated) <= threshold:
        return
    differences = Counter(found_live)
    differences.subtract(true_live)
    for operator, nbytes in sorted(differences.items(), key=lambda item: -abs(item[1]))[:4]:
        print(f"    {'+' if nbytes > 0 else '-'}{format_bytes(abs(nbytes)):>12}  {operator}", flush=True)


def at_peak(trace: MemoryTrace, device: DeviceProfile, batch_size: int) -> tuple[Timeline, Counter[str]]:
    """Return the replayed timeline, and the bytes that are live at its peak by phase and operator."""
    sizes = SizeTable(trace, device.kernel_target()).at(batch_size)
    timeline = replay(trace.events, sizes, CachingAllocator(CachingPolicy(), 1 << 50))
    live: set[int] = set()
    for code in trace.events[: timeline.peak_allocated_event + 1]:
        live.add(code) if code >= 0 else live.discard(~code)
    summed: Counter[str] = Counter()
    for index in live:
        operation = trace.operations[trace.storages[index].operation]
        summed[f"{operation.phase}: {trace.storages[index].category}"] += sizes[index]
        summed[f"{operation.phase} {operation.name.partition('.')[0]}"] += sizes[index]
    return timeline, summed


if __name__ == "__main__":
    sys.exit(main())
