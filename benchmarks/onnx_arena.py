"""Record what ONNX Runtime's arena does on the CPU, and compare it with the plan for the same model.

``python onnx_arena.py CASES.json RECORDED.json`` needs ``onnxruntime``. A case is ``[MODEL.onnx, BATCH, DIMS]``; a
path that begins with ``light_`` is one of the networks inside the package ``onnx``.

The log says how much the arena holds in the end (``Total allocated bytes``), reserved weights included, and how
large the last request was that it had to grow for. The CPU's convolutions take scratch from the arena
too, 64 KiB at a time, which a run on a GPU does not.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx

from dnnmem_tune.allocators.ort_arena import OrtArena, OrtArenaPolicy
from dnnmem_tune.allocators.replay import replay
from dnnmem_tune.frontends.onnx.dimensions import read_dimensions
from dnnmem_tune.frontends.onnx.flattening import Flattener
from dnnmem_tune.frontends.onnx.ort_plan import inference_trace
from dnnmem_tune.frontends.onnx.reading import read_model
from dnnmem_tune.frontends.onnx.simplifying import simplified
from dnnmem_tune.ir.trace import Category
from dnnmem_tune.operators.scratch import KernelTarget, SizeTable

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def find_model(name: str) -> Path:
    """Return the path of a case's model."""
    return LIGHT / f"{name}.onnx" if name.startswith("light_") else Path(name)


def planned_bytes(path: Path, batch_size: int, dims: dict[str, int]) -> tuple[int, int]:
    """Return what the arena holds after two runs on the CPU, weights left out, and the planned block."""
    model = read_model(path, memory_limit=8 << 30)
    dimensions = read_dimensions(model)
    shapes = dimensions.bind(batch_size, dims)
    flat = Flattener(model, shapes, batch=(batch_size, dimensions.fixed_batch)).flatten()
    trace = inference_trace(simplified(flat), memory_pattern=True, framework="ONNX Runtime", provider="cpu")
    target = KernelTarget(compute_capability=(8, 0), num_sms=108, threads_per_sm=2048)
    sizes = SizeTable(trace, target).at(batch_size)
    pattern = 0
    for index, storage in enumerate(trace.storages):
        if storage.category in (Category.WEIGHT, Category.INPUT):
            sizes[index] = 0  # on the CPU they stay where the caller has them
        if trace.operations[storage.operation].name == "memory pattern":
            pattern = sizes[index]
    return replay(trace.events, sizes, OrtArena(OrtArenaPolicy())).peak.reserved_bytes, pattern


def logged_bytes(path: Path, batch_size: int, dims: dict[str, int]) -> tuple[int, int]:
    """Return what the log of three real runs says: bytes in regions at the end, and the last request to grow."""
    command = [sys.executable, __file__, "run", str(path), str(batch_size), json.dumps(dims)]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    totals = [int(text) for text in re.findall(r"Total allocated bytes: (\d+)", log)]
    reserved = [int(text) for text in re.findall(r"Reserving memory in BFCArena for Cpu size: (\d+)", log)]
    requests = [int(text) for text in re.findall(r"\(actual\) rounded_bytes:(\d+)", log)]
    return totals[-1] - sum(reserved), requests[-1]


def run_model(path: Path, batch_size: int, dims: dict[str, int]) -> None:
    """Run a model three times with a verbose log."""
    import numpy as np
    import onnxruntime as ort

    model: Any = onnx.load(path, load_external_data=False)
    shapes = read_dimensions(model).bind(batch_size, dims)
    for value in model.graph.input:
        for dim, extent in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = extent
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    options = ort.SessionOptions()
    options.log_severity_level = 0
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_prepacking", "1")
    ort.set_default_logger_severity(0)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
    feeds = {given.name: np.ones(shapes[given.name], types[given.type]) for given in session.get_inputs()}
    for _ in range(3):
        session.run(None, feeds)


def record(cases: Path, recorded: Path) -> None:
    """Compare every case and write the table down."""
    rows = []
    for name, batch_size, dims in json.loads(cases.read_text(encoding="utf-8")):
        path = find_model(name)
        (arena, pattern), (logged, request) = (
            planned_bytes(path, batch_size, dims),
            logged_bytes(path, batch_size, dims),
        )
        rows.append(
            {"model": path.stem, "batch_size": batch_size, "dims": dims, "logged_arena_bytes": logged}
            | {"last_request_bytes": request, "planned_arena_bytes": arena, "planned_block_bytes": pattern}
        )
        print(f"{path.stem} batch {batch_size}: logged {logged}, planned {arena} ({arena / logged - 1:+.2%})")
    recorded.write_text(json.dumps({"onnxruntime": "1.32.0", "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run_model(Path(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
    else:
        record(Path(sys.argv[1]), Path(sys.argv[2]))
