"""One recorded job: build the workload on fake tensors and run its steps."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import torch

from dnnmem_tune.errors import WorkloadError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.torch.cuda_build import answer_for_libraries
from dnnmem_tune.frontends.torch.fake_mode import FakeCudaMode
from dnnmem_tune.frontends.torch.recorder import Recorder
from dnnmem_tune.frontends.torch.workloads.user_code import require_parameters
from dnnmem_tune.ir.trace import MemoryTrace

Step = Callable[[], object]
Build = Callable[..., Step]


def record_job(build: Build, request: RecordRequest, mode: FakeCudaMode) -> MemoryTrace:
    """Return the trace of ``build`` and of ``request.num_steps`` training steps.

    Args:
        build: The user's function; called with the batch size, a CUDA device and the hyperparameters.
        request: What to build and for which device.
        mode: The process's fake tensor mode; user code was imported under the same one.

    Raises:
        TypeError: If ``build`` does not return a function.
        UsageError: If it does not take one of the hyperparameters.
        WorkloadError: If nothing is allocated on the device.

    """
    require_parameters(build, request.params)
    recorder = Recorder(request.compute_capability)
    # Cyclic garbage would be found at other places in every trace: collect it between steps only.
    gc.disable()
    with warnings.catch_warnings(), mode, recorder, recorder.attribution.watching(recorder.identify):
        warnings.simplefilter("ignore")
        recorder.running = True
        step: Any = build(request.batch_size, torch.device("cuda"), **request.params)
        if not callable(step):
            raise TypeError(
                f"build must return a function that runs one training step, it returned {type(step).__name__}"
            )
        gc.collect()
        recorder.mark("build")
        for index in range(request.num_steps):
            answer_for_libraries()
            recorder.attribution.step = index
            step()
            recorder.attribution.settle_model()
            gc.collect()
            recorder.mark(f"step {index}")
        trace = recorder.finish()
    gc.enable()
    if not trace.events:
        raise WorkloadError(
            "the step allocates nothing on the GPU; move the model and each batch to the `device` of build"
        )
    return trace
