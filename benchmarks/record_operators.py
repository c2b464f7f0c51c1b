"""Record what single operators allocate in the real CUDA build of PyTorch 2.14.1 on stub CUDA libraries.

Every case of a program of tests/frontends/torch/programs that has ``CASES`` is run once on each card. The
sequences of allocations and frees go to tests/recorded/kernel_PROGRAM.json, and the kernels that PyTorch
chooses for attention to tests/recorded/kernel_attention_choice.json. The rig is described in record_oracle.py::

    python benchmarks/record_operators.py --rig DIR attention recurrent
    python benchmarks/record_operators.py --rig DIR choice

Nothing in the package or its tests needs the rig.
"""

import argparse
import importlib.util
import itertools
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "frontends" / "torch" / "programs"
RECORDED = ROOT / "tests" / "recorded"
CARDS = ("T4", "A100-40GB", "A10G", "RTX4090", "H100-80GB")
CARDS_OF = {
    "attention": ("T4", "A100-40GB", "H100-80GB"),
    "recurrent": ("A100-40GB",),
    "operators": ("A100-40GB",),
    "spectral": ("A100-40GB",),
    "matmul": ("A100-40GB",),
    "choice": CARDS,
}
BATCH_SIZE = 2
NUM_CHOICES = 400


def load_program(name: str) -> ModuleType:
    """Return a program of the tests as a module."""
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ValueError(f"record_operators: there is no program {name!r}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def events_of(program: ModuleType, params: dict[str, Any]) -> list[int]:
    """Run one case in this process and return its requests in bytes, and frees as negative bytes."""
    import torch

    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    program.build(BATCH_SIZE, torch.device("cuda"), **params)()
    signs = {"alloc": 1, "free_completed": -1}
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    return [signs[event["action"]] * event["size"] for event in trace if event["action"] in signs]


def cases_of(program: ModuleType) -> dict[str, dict[str, Any]]:
    """Return the cases of a program, each in every type it names."""
    types = getattr(program, "TYPES", None)
    if types is None:
        return dict(program.CASES)
    return {
        f"{name}, {dtype}": {**params, "dtype": dtype}
        for dtype, (name, params) in itertools.product(types, program.CASES.items())
    }


def draw_calls() -> list[dict[str, Any]]:
    """Return attention calls drawn at random from shapes, types, masks and layouts that matter to the choice."""
    draw = random.Random(5)
    calls: list[dict[str, Any]] = []
    while len(calls) < NUM_CHOICES:
        width, value_width = draw.choice(
            [(64, 64)] * 4
            + [(width, width) for width in (1, 8, 33, 36, 40, 96, 128, 192, 200, 224, 240, 256, 320)]
            + [(192, 128), (64, 32), (576, 512)]
        )  # fmt: skip
        queries, keys = draw.choice(
            [(128, 128)] * 3 + [(101, 101), (1, 128), (1, 1), (128, 77), (128, 1), (64, 4096)]
        )
        heads, key_heads = draw.choice([(4, 4)] * 4 + [(8, 2), (8, 1), (6, 4)])
        mask = draw.choice(
            [""] * 8
            + ["b11k", "b1qk", "bhqk", "qk", "hqk", "1k", "bhq1", "bool:b11k", "bool:qk", "grad:1hqk", "grad:qk"]
        )
        dimensions = draw.choice([4] * 10 + [3, 5])
        calls.append(
            {
                "dtype": draw.choice(["float16", "bfloat16", "float32"]),
                "width": width,
                "value_width": value_width,
                "queries": queries,
                "keys": keys,
                "heads": heads,
                "key_heads": key_heads,
                # torch._fused_sdp_choice does not see gradients of what it must unsqueeze.
                "mask": mask.removeprefix("grad:") if dimensions == 3 else mask,
                "dropout": draw.choice([0.0, 0.0, 0.0, 0.1, 0.125, 0.25]),
                "causal": not mask and draw.random() < 0.4,
                "grad": dimensions != 3 and draw.random() < 0.6,
                "grouped": heads != key_heads and draw.random() < 0.75,
                "layout": draw.choice(["heads", "rows", "heads", "rows", "packed", "sliced", "strided"]),
                "dimensions": dimensions,
                "batch": draw.choice([1, 2]),
            }
        )
    return calls


def choices_of(calls: list[dict[str, Any]]) -> list[str]:
    """Return the kernel that PyTorch chooses for each call."""
    import torch

    attention_calls = load_program("attention_calls")
    names = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
    answers = []
    for call in calls:
        query, key, value, mask = attention_calls.tensors(call, torch.device("cuda"))
        number = torch._fused_sdp_choice(
            query, key, value, mask, call["dropout"], call["causal"], scale=None, enable_gqa=call["grouped"]
        )
        answers.append(names[number])
    return answers


def record_card(rig: Path, card: str, what: str) -> Any:
    """Return the answers of one card; the rig can be loaded for one card in a process only."""
    sys.path.insert(0, str(rig))
    import fakegpu  # type: ignore[import-not-found]

    fakegpu.load(card)
    import oracle  # type: ignore[import-not-found]
    import torch  # noqa: F401  (imported before forking, so that no child has to)

    oracle.skip_cpu_init()

    def in_child(function: Callable[[], list[Any]]) -> list[Any]:
        answer = oracle.in_child(lambda: {"rows": function()})
        if "error" in answer:
            raise RuntimeError(f"{what} on {card}: {answer['error']}")
        return list(answer["rows"])

    if what == "choice":
        return in_child(lambda: choices_of(draw_calls()))
    program = load_program(what)
    return {
        name: in_child(lambda params=params: events_of(program, params))  # type: ignore[misc]
        for name, params in cases_of(program).items()
    }


def main() -> None:
    """Record the programs that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rig", type=Path, required=True, help="folder with fakegpu.py, oracle.py, lib")
    parser.add_argument("programs", nargs="+", choices=sorted(CARDS_OF))
    parser.add_argument("--card", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.card:
        arguments.out.write_text(json.dumps(record_card(arguments.rig, arguments.card, arguments.programs[0])))
        return
    for what in arguments.programs:
        answers = {}
        for card in CARDS_OF[what]:
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                command = [sys.executable, __file__, "--rig", str(arguments.rig), what, "--card", card]
                subprocess.run([*command, "--out", file.name], check=True)
                answers[card] = json.loads(Path(file.name).read_text())
        write(what, answers)


def write(what: str, answers: dict[str, Any]) -> None:
    """Write one file, a line for each case."""
    provenance = {
        "source": "the real CUDA build of PyTorch 2.14.1 on stub CUDA libraries",
        "written_by": "benchmarks/record_operators.py",
        "batch_size": BATCH_SIZE,
        "unit": "bytes requested; negative where they are given back",
    }
    if what == "choice":
        calls = draw_calls()
        rows = [
            call | {"choices": [answers[card][number] for card in answers]} for number, call in enumerate(calls)
        ]
        provenance = {key: provenance[key] for key in ("source", "written_by")} | {"cards": list(answers)}
        path = RECORDED / "kernel_attention_choice.json"
    else:
        rows = [
            {"card": card, "case": name, "events": events}
            for card, cases in answers.items()
            for name, events in cases.items()
        ]
        path = RECORDED / f"kernel_{what}.json"
    lines = ",\n".join(json.dumps(row) for row in rows)
    path.write_text(f'{{"provenance": {json.dumps(provenance)},\n"rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
