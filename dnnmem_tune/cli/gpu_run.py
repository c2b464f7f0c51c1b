"""Run a workload on the real GPU and print its peaks: ``python -m dnnmem_tune.cli.gpu_run``.

Reads one JSON request on standard input and prints one line of JSON at the end. It is a
process of its own, so that an out-of-memory error, a crash or a changed allocator
configuration stays here.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    if request["alloc_conf"]:
        # Both names, since releases read different ones.
        os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = request["alloc_conf"]
    # What the workload prints is for a person: the answer has standard output for itself.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer = measure(request)
    print(json.dumps(answer), file=answers, flush=True)


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Return the peaks of a run, or why there was none."""
    try:
        import torch
    except ImportError:
        return {
            "missing": "dnnmem check needs the package 'torch', which is not installed; "
            "install a CUDA build of it (https://pytorch.org/get-started)"
        }
    if not torch.cuda.is_available():
        return {
            "error": f"dnnmem check runs the job on a GPU, and torch {torch.__version__} sees none here; "
            "use dnnmem estimate, which needs none"
        }
    from dnnmem_tune.errors import DnnMemError
    from dnnmem_tune.frontends.torch.workloads.resolve import load_build

    used_before = _used_by_card()
    out_of_memory = False
    try:
        build = load_build(request["workload"])
        step = build(request["batch_size"], torch.device("cuda"), **request["params"])
        for _ in range(request["num_steps"]):
            step()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        out_of_memory = True
    except DnnMemError as error:
        return {"error": str(error)}
    except Exception as error:  # the user's code: whatever it raises is told, and is no verdict
        return {"error": f"the workload raised {type(error).__name__}: {error}"}
    card = torch.cuda.get_device_properties(0)
    uuid = str(getattr(card, "uuid", ""))
    return {
        "gpu": _describe(card, used_before.get(uuid)),
        "torch": torch.__version__,
        "out_of_memory": out_of_memory,
        "peaks": _peaks(torch.cuda.memory_stats(), _used_by_card().get(uuid), used_before.get(uuid)),
    }


def _peaks(stats: dict[str, int], used: int | None, used_before: int | None) -> dict[str, int | None]:
    reserved = stats["reserved_bytes.all.peak"]
    device = None
    if used is not None and used_before is not None:
        outside = used - used_before - stats["reserved_bytes.all.current"]
        device = reserved + max(0, outside)
    return {
        "requested_bytes": stats.get("requested_bytes.all.peak"),
        "allocated_bytes": stats["allocated_bytes.all.peak"],
        "reserved_bytes": reserved,
        "device_bytes": device,
    }


def _describe(properties: torch._C._CudaDeviceProperties, used_before: int | None) -> dict[str, Any]:
    return {
        "name": properties.name,
        "total_bytes": properties.total_memory,
        "compute_capability": [properties.major, properties.minor],
        "num_sms": properties.multi_processor_count,
        "occupied_bytes": used_before,
    }


def _used_by_card() -> dict[str, int]:
    """Return the memory in use on each card as the driver counts it, by its UUID; empty without NVML.

    NVML numbers all cards of the machine and CUDA the visible ones, so that only the UUID tells which is which.
    """
    used: dict[str, int] = {}
    with contextlib.suppress(Exception):  # any trouble of NVML means only that one peak is not measured
        import pynvml

        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            text = uuid.decode() if isinstance(uuid, bytes) else uuid
            used[text.removeprefix("GPU-")] = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    return used


if __name__ == "__main__":
    main()
