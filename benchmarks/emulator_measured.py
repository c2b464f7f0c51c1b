"""PyTorch itself on the emulated card against peaks measured on real cards.

    python benchmarks/emulator_measured.py --python PYTHON         all rows of measured_gpus.py
    python benchmarks/emulator_measured.py --python PYTHON gpt     rows whose name contains a word

PYTHON has what the measured runs had: torch 2.6.0+cu124, transformers 4.51. The measured figure is what NVML saw
at most, less what it saw before the job, so kernels that are loaded later are in it (14 to 34 MiB on these
cards) and convolution workspaces are: what is left over is the last column. cuBLAS workspaces were off.
"""

from __future__ import annotations

import argparse
import os
import sys

from measured_gpus import ROWS, WORKLOADS

from dnnmem_tune.emulator.card import Card
from dnnmem_tune.emulator.installation import find_installation
from dnnmem_tune.errors import DnnMemError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.torch.emulated.client import EmulatedRecorder
from dnnmem_tune.operators.convolution import MODELS
from dnnmem_tune.units import MIB

RTX3060 = Card(
    name="NVIDIA GeForce RTX 3060",
    total_bytes=12_622_168_064,
    context_bytes=128 * MIB,
    compute_capability=(8, 6),
    num_sms=28,
)
"""Everything outside the allocator was 96 to 158 MiB on this card; usable capacity is the total less 128."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--python", required=True)
    parser.add_argument("--conv-workspace", choices=MODELS, default="none")
    arguments = parser.parse_args()
    os.environ.update(CUBLAS_WORKSPACE_CONFIG=":0:0", CUBLASLT_WORKSPACE_SIZE="0")
    installation = find_installation(arguments.python)
    for function in dict.fromkeys(row.function for row in ROWS):
        recorder = EmulatedRecorder(f"{WORKLOADS}:{function}", card=RTX3060, installation=installation)
        for row in ROWS:
            if row.function != function or (
                arguments.words and not any(word in row.name for word in arguments.words)
            ):
                continue
            asked = RecordRequest(workload=function, batch_size=row.batch_size, params=row.params)
            (run,) = recorder.run([asked], conv_workspace=arguments.conv_workspace)
            if isinstance(run, DnnMemError):
                print(f"{row.name:24} {run}")
                continue
            reserved = run.peak_reserved_bytes
            print(
                f"{row.name:24} measured {row.measured_bytes / MIB:9.1f} MiB, reserved {reserved / MIB:9.1f} MiB, "
                f"{(row.measured_bytes - reserved) / MIB:+8.1f} MiB ({reserved / row.measured_bytes - 1:+.2%})"
                f"{'' if run.fits else ', out of memory'}",
                flush=True,
            )
        recorder.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
