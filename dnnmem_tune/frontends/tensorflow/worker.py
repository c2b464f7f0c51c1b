"""The worker process: imports TensorFlow once, forks a child for each trace.

The protocol is that of ``dnnmem_tune.frontends.torch.worker``. The user's code is imported in the
child: once it has used TensorFlow, there are threads that a fork would lose.
"""

from __future__ import annotations

from typing import Any

from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.torch.worker import Answer, serve
from dnnmem_tune.ir.encoding import encode_trace


def main() -> None:
    """Serve requests until standard input ends."""
    serve(_prepare)


def _prepare(setup: dict[str, Any]) -> Answer:
    """Import TensorFlow; return the function that a child runs."""
    from dnnmem_tune.frontends.tensorflow import job

    reference, fast = setup["workload"], setup["fast"]

    def answer(request: RecordRequest, _message: dict[str, Any]) -> dict[str, Any]:
        return encode_trace(job.record_job(reference, request, fast=fast))

    return answer


if __name__ == "__main__":
    main()
