"""Largest batches against PyTorch's own allocator: every case of ``max_batch_cases.toml``, as a table.

    python benchmarks/max_batch.py            all cases
    python benchmarks/max_batch.py hf_ gpt    cases whose name contains a word

The truth is ``tests/recorded/torch_oracle_maxbatch.json``: the real CUDA build of PyTorch on
stub CUDA libraries, with the card's total memory and the context below. The answer is
looked for between 1 and the case's ``upper``, as it was there.
"""

from __future__ import annotations

import json
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import dnnmem_tune
from dnnmem_tune.config import find_device
from dnnmem_tune.errors import DnnMemError

ROOT = Path(__file__).resolve().parent.parent

CONTEXT_BYTES = {"T4": 105 << 20, "A100-40GB": 430 << 20, "H100-80GB": 520 << 20}
"""What the recorded runs left to the context; the catalogue's own figures are better, and differ."""


def main(words: list[str]) -> int:
    answers = json.loads((ROOT / "tests/recorded/torch_oracle_maxbatch.json").read_text())["cases"]
    cases = tomllib.loads((ROOT / "benchmarks/max_batch_cases.toml").read_text())["cases"]
    within = judged = 0
    for case in cases:
        if words and not any(word in case["name"] for word in words):
            continue
        answer = answers[case["name"]]
        card = replace(
            find_device(case["gpu"]),
            total_bytes=answer["total_memory"],
            context_bytes=CONTEXT_BYTES[case["gpu"]],
        )
        params = {key: None if value == "none" else value for key, value in case["params"].items()}
        reference = f"{ROOT / 'benchmarks/workloads' / case['workload']}.py:build"
        started = time.perf_counter()
        try:
            found = dnnmem_tune.max_batch_size(
                reference, gpu=card, params=params, maximum=case["upper"], recorder="fake"
            ).largest_batch
        except DnnMemError as error:
            print(f"{case['name']:34} {error}")
            continue
        truth = answer["max_batch_size"]
        judged += 1
        within += abs((found or 0) - truth) <= 0.01 * truth
        seconds = time.perf_counter() - started
        above = f", {answer['also_fit_above']} fit as well" if answer["also_fit_above"] else ""
        print(
            f"{case['name']:34} {case['gpu']:10} found {found} recorded {truth}{above}   {seconds:.1f} s",
            flush=True,
        )
    print(f"{within} of {judged} within 1 %")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
