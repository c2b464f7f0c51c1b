"""Which configurations of an MXNet sweep fit a card, before any of them is launched.

Needs a Python with MXNet 1.9.1 beside this one: ``make test`` makes .venv-mxnet, or name another with
DNNMEM_MXNET_PYTHON. No GPU is needed. ``--smoke`` asks about a small network only.
"""

from __future__ import annotations

import itertools
import sys

from dnnmem_tune import max_batch_size
from dnnmem_tune.guard.guard import MemoryGuard


def main(model: str, batch_sizes: tuple[int, ...]) -> None:
    guard = MemoryGuard(model, gpu="T4", framework="mxnet")
    for execution, batch_size in itertools.product(("executor", "hybridized"), batch_sizes):
        verdict = guard.check({"batch_size": batch_size, "execution": execution, "optimizer": "adam"})
        print(f"{execution:10} batch {batch_size:4}: {verdict.state}")
    result = max_batch_size(model, gpu="T4", framework="mxnet", params={"optimizer": "adam"})
    print(f"largest batch of {model} on a T4: {result.largest_batch}")


if __name__ == "__main__":
    smoke = "--smoke" in sys.argv
    main("squeezenet1.1" if smoke else "resnet50", (64, 2048) if smoke else (64, 128, 192, 256))
