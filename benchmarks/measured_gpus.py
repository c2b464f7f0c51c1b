"""Estimates against peaks measured on real GPUs, for each model of the convolution workspace.

    python benchmarks/measured_gpus.py             all rows
    python benchmarks/measured_gpus.py gpt vgg     rows whose name contains a word

The measured figure is what NVML saw at most, less what it saw before the job began to run: kernels that
are loaded later are in it, the context is not, and for the networks on images up to the size of the
parameters may be missing. So it is compared with the peak of reserved memory, and 14 to 34 MiB more
is right. Two real runs of one job on images differ by 2.6 % in the median.

Source of the measurements: Stone-ResearchLife/xMem (MIT), ``plot/data``; torch 2.6.0+cu124, fp32, cuBLAS
workspaces off, RTX 3060 (12,622,168,064 bytes).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dnnmem_tune.allocators.policy import CachingPolicy, TieBreak
from dnnmem_tune.api import EstimationSession
from dnnmem_tune.estimate.estimator import Estimator
from dnnmem_tune.ir.size import Polynomial
from dnnmem_tune.ir.trace import Category, MemoryTrace
from dnnmem_tune.operators.convolution import MODELS
from dnnmem_tune.units import MIB

WORKLOADS = Path(__file__).with_name("measured_workloads.py")
POLICY = CachingPolicy(tie_break=TieBreak.LOWEST_ADDRESS)
"""Of PyTorch 2.6."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run."""

    function: str
    params: dict[str, Any]
    batch_size: int
    measured_bytes: int

    @property
    def name(self) -> str:
        """Network or model, with the batch size."""
        return f"{self.params.get('network') or self.params['model']} b{self.batch_size}"


ROWS = (
    Row("build", {"network": "convnext_tiny", "optimizer": "Adam"}, 300, 4_846_518_272),
    Row("build", {"network": "mobilenet_v2", "optimizer": "AdamW"}, 251, 4_148_166_656),
    Row("build", {"network": "resnet101", "optimizer": "SGD"}, 351, 8_468_299_776),
    Row("build", {"network": "vgg16", "optimizer": "Adam"}, 543, 11_131_682_816),
    Row("build_language_model", {"model": "gpt-neo-125m", "optimizer": "AdamW"}, 20, 7_547_650_048),
    Row("build_language_model", {"model": "t5-small", "optimizer": "AdamW"}, 20, 4_622_123_008),
    Row("build_language_model", {"model": "distilgpt2", "optimizer": "Adam"}, 20, 5_108_662_272),
    Row("build_language_model", {"model": "gpt2", "optimizer": "AdamW"}, 27, 9_823_059_968),
    Row("build_language_model", {"model": "opt-125m", "optimizer": "AdamW"}, 38, 8_906_604_544),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    words = parser.parse_args().words
    print(f"{'MiB':18}{'measured':>10}" + "".join(f"{model:>12}{'':8}" for model in MODELS))
    for row in ROWS:
        if not words or any(word in row.name for word in words):
            print(render(row), flush=True)
    return 0


def render(row: Row) -> str:
    """Return a line of the table: reserved bytes and their difference from the measured ones."""
    with EstimationSession(f"{WORKLOADS}:{row.function}") as session:
        estimator = session.estimator(row.batch_size, "RTX 3060", row.params)
    trace = without_blas_workspaces(estimator.trace)
    cells = []
    for model in MODELS:
        estimate = Estimator(trace, estimator.device, policy=POLICY, conv_workspace=model).at(row.batch_size)
        reserved = estimate.peak_reserved_bytes
        cells.append(f"{reserved // MIB:12}{(reserved - row.measured_bytes) / row.measured_bytes:+8.1%}")
    return f"{row.name:18}{row.measured_bytes // MIB:10}" + "".join(cells)


def without_blas_workspaces(trace: MemoryTrace) -> MemoryTrace:
    """Return the job as ``CUBLAS_WORKSPACE_CONFIG=:0:0`` makes it; optional workspaces are cuDNN's."""
    storages = tuple(
        replace(storage, size=Polynomial(0))
        if storage.category is Category.WORKSPACE and not storage.optional
        else storage
        for storage in trace.storages
    )
    return replace(trace, storages=storages)


if __name__ == "__main__":
    sys.exit(main())
