"""The worker process: PyTorch's CUDA build on the stub libraries, one forked child for each job.

The protocol, the limits and the forking are those of the fake recorder's worker; what differs
is what a child does. A request may ask for an exact run in place of a trace:

    -> {..., "emulator": FOLDER, "card": {...}}
    -> {"requests": [...], "exact": {"conv_workspace": "none"} or null, ...}
"""

from __future__ import annotations

import dataclasses
import gc
import os
import resource
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dnnmem_tune.emulator.card import UNLIMITED_BYTES, Card, decode_card
from dnnmem_tune.emulator.load import LoadedCard, load
from dnnmem_tune.errors import UnsupportedError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.torch.worker import serve
from dnnmem_tune.ir.encoding import encode_trace

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.workloads.resolve import Build

Answer = Callable[[RecordRequest, dict[str, Any]], dict[str, Any]]


def main() -> None:
    """Serve requests until standard input ends."""
    serve(prepare)


def prepare(setup: dict[str, Any]) -> Answer:
    """Load the stub libraries, import torch and the workload; return the function that a child runs."""
    os.environ["KINETO_LOG_LEVEL"] = "99"
    card = load(setup["emulator"], decode_card(setup["card"]))
    import torch

    from dnnmem_tune.frontends.torch.emulated.host_memory import skip_large_random_fills
    from dnnmem_tune.frontends.torch.emulated.known_answers import answer_known_questions
    from dnnmem_tune.frontends.torch.emulated.warm_up import warm_up
    from dnnmem_tune.frontends.torch.workloads import resolve

    torch.set_num_threads(1)  # forked children must not miss threads
    skip_large_random_fills()
    answer_known_questions()
    warm_up()
    build = _load_without_the_card(setup["workload"])
    gc.collect()
    gc.freeze()  # children need not look at what is here already
    return lambda request, message: _answer(
        build or resolve.load_build(setup["workload"]), card, decode_card(setup["card"]), request, message
    )


def _load_without_the_card(workload: str) -> Build | None:
    """Import the workload, or return nothing if it uses the card while it is imported: each child then does so.

    Children are forked, and CUDA cannot be used on both sides of a fork.
    """
    import torch

    from dnnmem_tune.frontends.torch.workloads import resolve

    initialize = torch.cuda._lazy_init
    asked: list[bool] = []

    def refuse() -> None:
        asked.append(True)
        raise UnsupportedError("the card is not there while a workload is imported for every child")

    torch.cuda._lazy_init = refuse
    try:
        build = resolve.load_build(workload)
    except BaseException:
        if not asked:
            raise
    finally:
        torch.cuda._lazy_init = initialize
    return None if asked else build


def _answer(
    build: Build, loaded: LoadedCard, card: Card, request: RecordRequest, message: dict[str, Any]
) -> dict[str, Any]:
    from dnnmem_tune.frontends.torch.emulated import convolutions, job
    from dnnmem_tune.operators.scratch import KernelTarget

    # Weights on the CPU are reserved and never touched: what counts is resident memory, which the parent watches.
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    exact = message.get("exact")
    if exact is None:
        loaded.become(dataclasses.replace(card, capacity_bytes=UNLIMITED_BYTES))
        return encode_trace(job.record_job(build, request, loaded, loaded.notes(card)))
    loaded.become(card)
    target = KernelTarget(
        compute_capability=card.compute_capability,
        num_sms=card.num_sms,
        threads_per_sm=card.threads_per_sm,
        conv_workspace=exact["conv_workspace"],
    )
    convolutions.follow_model(loaded, target)
    return dataclasses.asdict(job.run_job(build, request, loaded, loaded.notes(card)))


if __name__ == "__main__":
    main()
    sys.exit(0)
