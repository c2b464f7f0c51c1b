"""Record the memory of every case from the real CUDA build of PyTorch 2.14.1 on stub CUDA libraries.

The rig replaces the CUDA libraries by stubs whose kernels do nothing, so allocations are those of PyTorch's own
allocator, autograd and operators, while tensor values are meaningless. It is not part of this repository; run
this file with the Python that has that PyTorch, naming the rig's folder::

    python benchmarks/record_oracle.py --rig DIR
    python benchmarks/record_oracle.py --rig DIR --max-batch

``--events DIR`` also writes the sequence of allocations of every case, for debugging. Nothing in the package or
its tests needs the rig: they read the two files that are written to tests/recorded/.
"""

import argparse
import gzip
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent
RECORDED = BENCHMARKS.parent / "tests" / "recorded"
NUM_STEPS = 3
METRICS = ("requested", "allocated", "reserved")
MAX_BATCH_CHECKS_ABOVE = 2
OPERATOR = re.compile(r"at::_ops::(\w+)::(?:call|redispatch)")
NODE = re.compile(r"(?:generated|autograd)::(\w+(?:Backward\d*|Grad))::apply")


def load_cases(path: Path) -> list[dict[str, Any]]:
    """Return the tables of a file of cases."""
    with path.open("rb") as file:
        return list(tomllib.load(file)["cases"])


def load_build(workload: str) -> Callable[..., Callable[[], object]]:
    """Return the function ``build`` of one workload."""
    path = BENCHMARKS / "workloads" / f"{workload}.py"
    spec = importlib.util.spec_from_file_location(f"workload_{workload}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"record_oracle: there is no workload {workload!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.build  # type: ignore[no-any-return]


def read_peaks() -> dict[str, int]:
    """Return the peaks, in bytes, since they were last reset."""
    import torch

    stats = torch.cuda.memory_stats()
    return {metric: stats[f"{metric}_bytes.all.peak"] for metric in METRICS}


def run_case(case: dict[str, Any], batch_size: int, events: Path | None = None) -> dict[str, Any]:
    """Build and step one case in this process and return its memory in bytes.

    Running out of memory is an answer, not an error: ``out_of_memory_in`` then says where.
    """
    import fakegpu  # type: ignore[import-not-found]
    import torch

    build = load_build(case["workload"])
    params = {key: None if value == "none" else value for key, value in case["params"].items()}
    torch.cuda.init()
    if events is not None:
        torch.cuda.memory._record_memory_history(max_entries=5_000_000, stacks="all")
    result: dict[str, Any] = {"out_of_memory_in": None}
    phases: list[dict[str, int]] = []
    where = "build"
    marks = []
    try:
        step = build(batch_size, torch.device("cuda"), **params)
        phases.append(read_peaks())
        result["reads_in_build"] = fakegpu.stats()["d2h"]
        for index in range(NUM_STEPS):
            where = f"step {index}"
            marks.append(count_events() if events is not None else 0)
            torch.cuda.reset_peak_memory_stats()
            step()
            torch.cuda.synchronize()
            phases.append(read_peaks())
    except (torch.cuda.OutOfMemoryError, RuntimeError) as error:
        # cuDNN reports a convolution whose workspace did not fit as a missing engine.
        if not isinstance(error, torch.cuda.OutOfMemoryError) and (
            "unable to find an engine" not in str(error) or not torch.cuda.memory_stats()["num_ooms"]
        ):
            raise
        result["out_of_memory_in"] = where
        phases.append(read_peaks())
    if events is not None:
        write_events(events, marks)
    return result | {
        "peak": {metric: max(phase[metric] for phase in phases) for metric in METRICS},
        "peak_in_build": phases[0],
        "peak_per_step": phases[1:],
        "alloc_retries": torch.cuda.memory_stats()["num_alloc_retries"],
        "host_reads": fakegpu.stats()["d2h"],
        "total_memory": torch.cuda.mem_get_info()[1],
        "torch": torch.__version__,
    }


def count_events() -> int:
    """Return how many allocator events were recorded so far."""
    import torch

    stats = torch.cuda.memory_stats()
    return int(stats["allocation.all.allocated"])


def write_events(path: Path, marks: list[int]) -> None:
    """Write one line of JSON per allocator event: what, size, address, operator and innermost Python frames."""
    import torch

    num_allocated = 0
    with gzip.open(path, "wt", compresslevel=4) as file:
        for event in torch.cuda.memory._snapshot()["device_traces"][0]:
            if event["action"] == "alloc":
                num_allocated += 1
            frames = event.get("frames", [])
            python = [f for f in frames if f["filename"].endswith(".py")]
            native = " ".join(f["name"] for f in frames if not f["filename"].endswith(".py"))
            operators = OPERATOR.findall(native)
            nodes = NODE.findall(native)
            record = {
                "action": event["action"],
                "size": event["size"],
                "addr": event["addr"],
                "step": sum(num_allocated > mark for mark in marks) - 1,
                "op": operators[0] if operators else None,
                "outer_op": operators[-1] if operators else None,
                "node": nodes[0] if nodes else None,
                "stack": [f"{f['name']} {Path(f['filename']).name}:{f['line']}" for f in python[:6]],
            }
            file.write(json.dumps(record) + "\n")


def find_max_batch(case: dict[str, Any], in_child: Callable[..., dict[str, Any]], upper: int) -> dict[str, Any]:
    """Return the largest batch size that runs, found by doubling, bisection and a look at the next ones above."""
    trials: dict[int, dict[str, Any]] = {}

    def fits(batch_size: int) -> bool:
        if batch_size not in trials:
            trials[batch_size] = in_child(lambda: run_case(case, batch_size))
            if "error" in trials[batch_size]:
                raise RuntimeError(f"{case['name']} at batch size {batch_size}: {trials[batch_size]['error']}")
        return trials[batch_size]["out_of_memory_in"] is None

    lower, above = 0, 1
    while above <= upper and fits(above):
        lower, above = above, above * 2
    above = min(above, upper + 1)
    while above - lower > 1:
        middle = (lower + above) // 2
        lower, above = (middle, above) if fits(middle) else (lower, middle)
    nearby = [
        size for size in range(lower + 1, lower + 1 + MAX_BATCH_CHECKS_ABOVE) if size <= upper and fits(size)
    ]
    return {
        "max_batch_size": lower,
        "also_fit_above": nearby,
        "upper": upper,
        "total_memory": trials[1]["total_memory"],
        "torch": trials[1]["torch"],
        "trials": [
            {
                "batch_size": size,
                "out_of_memory_in": trial["out_of_memory_in"],
                "peak_allocated": trial["peak"]["allocated"],
                "peak_reserved": trial["peak"]["reserved"],
                "alloc_retries": trial["alloc_retries"],
            }
            for size, trial in sorted(trials.items())
        ],
    }


def answer_mask_questions() -> None:
    """Let transformers learn that no token is padding and no sequences are packed, as it does on a GPU.

    It reads that from the device to leave out attention masks. The stubs' kernels compute nothing, so every such
    answer would be no, and the models would build masks that they do not build on a GPU. The operators still run.
    """
    from transformers import masking_utils

    find_packed_sequence_indices = masking_utils.find_packed_sequence_indices
    fast_all = masking_utils.fast_all

    def find_none(position_ids: Any) -> None:
        find_packed_sequence_indices(position_ids)

    def is_all(tensor: Any) -> bool:
        bool(fast_all(tensor))
        return True

    masking_utils.find_packed_sequence_indices = find_none
    masking_utils.fast_all = is_all


def record_card(arguments: argparse.Namespace, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the answers of all cases on one card; the rig can be loaded for one card in a process only."""
    sys.path.insert(0, str(arguments.rig))
    import fakegpu
    import oracle  # type: ignore[import-not-found]

    fakegpu.load(arguments.card)
    import torch  # noqa: F401  (imported before forking, so that no child has to)

    oracle.skip_cpu_init()
    answer_mask_questions()
    answers: dict[str, Any] = {}
    for case in cases:
        events = arguments.events and arguments.events / f"{case['name']}.jsonl.gz"
        if arguments.max_batch:
            answer = find_max_batch(case, oracle.in_child, case["upper"])
        else:
            answer = oracle.in_child(lambda case=case, events=events: run_case(case, case["batch_size"], events))
        if "error" in answer:
            print(f"{case['name']}: {answer['error']}\n{answer.get('traceback', '')}", file=sys.stderr)
            continue
        answers[case["name"]] = {key: case[key] for key in ("workload", "gpu", "params")} | answer
        if not arguments.max_batch:
            answers[case["name"]]["batch_size"] = case["batch_size"]
        print(f"{case['name']}: {answer.get('max_batch_size') or answer['peak']}", file=sys.stderr)
    return answers


def record(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the answers of all cases, in their order, one process per card."""
    cases = load_cases(arguments.cases)
    if arguments.only:
        cases = [case for case in cases if case["name"] in arguments.only]
    answers: dict[str, Any] = {}
    for card in sorted({case["gpu"] for case in cases}):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [sys.executable, __file__, *sys.argv[1:], "--card", card, "--out", file.name]
            settings = {"FAKEGPU_CONV_WORKSPACE": "zero", "TORCH_SYMBOLIZE_MODE": "dladdr"}
            subprocess.run(command, check=True, env=os.environ | settings)
            answers |= json.loads(Path(file.name).read_text())
    missing = [case["name"] for case in cases if case["name"] not in answers]
    if missing:
        print(f"no answer for {', '.join(missing)}", file=sys.stderr)
    return {case["name"]: answers[case["name"]] for case in cases if case["name"] in answers}


def describe(answers: dict[str, Any]) -> dict[str, Any]:
    """Return where the answers come from, for the head of the file."""
    import transformers

    [torch_version] = {answer.pop("torch") for answer in answers.values()}
    return {
        "source": "the real CUDA build of PyTorch 2.14.1 on stub CUDA libraries",
        "torch": torch_version,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "steps": NUM_STEPS,
        "convolution_workspace": "none",
        "attention_workspace": "none",
        "unit": "bytes",
        "written_by": "benchmarks/record_oracle.py",
    }


def main() -> None:
    """Record all cases, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rig", type=Path, required=True, help="folder with fakegpu.py, oracle.py, lib")
    parser.add_argument("--cases", type=Path, help="file of cases; by default cases.toml beside this file")
    parser.add_argument("--only", nargs="+", help="names of cases")
    parser.add_argument("--max-batch", action="store_true", help="find the largest batch sizes instead")
    parser.add_argument("--events", type=Path, help="folder for the allocator events of each case")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--card", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    name = "max_batch_cases.toml" if arguments.max_batch else "cases.toml"
    arguments.cases = arguments.cases or BENCHMARKS / name
    if arguments.card:
        cases = [case for case in load_cases(arguments.cases) if case["gpu"] == arguments.card]
        if arguments.only:
            cases = [case for case in cases if case["name"] in arguments.only]
        arguments.out.write_text(json.dumps(record_card(arguments, cases)))
        return
    answers = record(arguments)
    file = "torch_oracle_maxbatch.json" if arguments.max_batch else "torch_oracle.json"
    out = arguments.out or RECORDED / file
    out.parent.mkdir(parents=True, exist_ok=True)
    head = describe(answers)
    out.write_text(json.dumps({"provenance": head, "cases": answers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
