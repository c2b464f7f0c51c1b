"""Inference under ONNX Runtime: buffers are shared as its planner shares them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")

from onnx import helper

from dnnmem_tune.allocators.ort_arena import OrtArena, OrtArenaPolicy
from dnnmem_tune.allocators.replay import replay
from dnnmem_tune.frontends.onnx.dimensions import read_dimensions
from dnnmem_tune.frontends.onnx.flat import FlatModel
from dnnmem_tune.frontends.onnx.flattening import Flattener
from dnnmem_tune.frontends.onnx.ort_plan import inference_trace, plan_buffers
from dnnmem_tune.frontends.onnx.reading import read_model
from dnnmem_tune.frontends.onnx.simplifying import simplified
from dnnmem_tune.ir.trace import Category, MemoryTrace
from dnnmem_tune.operators.scratch import KernelTarget, SizeTable
from tests.onnx_models import LIGHT, make_model, perceptron, weight

TARGET = KernelTarget(compute_capability=(8, 0), num_sms=108, threads_per_sm=2048)
RECORDED = json.loads((Path(__file__).parents[2] / "recorded" / "onnx_arena.json").read_text(encoding="utf-8"))


def flat_model(model: Any, batch: int = 1) -> FlatModel:
    """Return the graph that runs at a batch size."""
    dimensions = read_dimensions(model)
    flattener = Flattener(model, dimensions.bind(batch, {}), batch=(batch, dimensions.fixed_batch))
    return simplified(flattener.flatten())


def chain(*ops: str) -> FlatModel:
    """Return operators one after the other on 1024 numbers, with a result of its own at the end."""
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"]) for i, op in enumerate(ops)]
    nodes.append(helper.make_node("ReduceSum", [f"v{len(ops)}"], ["y"]))
    return flat_model(make_model(nodes, {"v0": ["batch", 1024]}, ["y"]))


def test_an_activation_runs_in_place_and_a_square_root_does_not() -> None:
    """As their kernels for CUDA are registered; on the CPU the root is in place too."""
    flat = chain("Exp", "Relu", "Sqrt")

    on_cuda, on_cpu = plan_buffers(flat, "cuda").buffer_of, plan_buffers(flat, "cpu").buffer_of

    assert on_cuda["v1"] == on_cuda["v2"] != on_cuda["v3"]
    assert on_cpu["v1"] == on_cpu["v3"]


def test_a_buffer_of_the_same_shape_serves_again() -> None:
    """The second after the first has been read: two buffers do for a chain of any length."""
    plan = plan_buffers(chain("Exp", "Sqrt", "Exp", "Sqrt", "Exp"))

    assert len({plan.buffer_of[f"v{i}"] for i in range(1, 6)}) == 2


def test_a_result_of_the_model_shares_nothing() -> None:
    """The caller gets it, so that even an alias is copied."""
    nodes = [helper.make_node("Exp", ["x"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    plan = plan_buffers(flat_model(make_model(nodes, {"x": ["batch", 8]}, ["y"])))

    assert plan.buffer_of["h"] != plan.buffer_of["y"]


def test_batch_normalisation_after_a_convolution_is_fused() -> None:
    """Its parameters then are part of the convolution's."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    weights = [weight("w", 8, 3, 1, 1), *(weight(name, 8) for name in "sbmv")]
    flat = flat_model(make_model(nodes, {"x": ["batch", 3, 4, 4]}, ["y"], weights))

    assert [node.op for node in flat.nodes] == ["Conv", "Relu"]
    assert flat.weights == ["w"]


def test_the_branch_that_is_later_in_the_file_runs_first() -> None:
    """Depth first from the result: what decides how much is held at a fork."""
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="first"),
        helper.make_node("Sqrt", ["x"], ["b"], name="second"),
        helper.make_node("Add", ["a", "b"], ["y"], name="join"),
    ]
    flat = flat_model(make_model(nodes, {"x": ["batch", 8]}, ["y"]))

    assert [node.name for node in flat.nodes] == ["second", "first", "join"]


def test_later_runs_take_one_block() -> None:
    """By hand: h of 2 x 16 numbers, in 256 bytes; the result, two inputs and the weights lie beside it."""
    trace = inference_trace(flat_model(perceptron(), 2), memory_pattern=True, framework="ONNX Runtime")
    sizes = SizeTable(trace, TARGET).at(2)

    blocks = [
        sizes[index]
        for index, storage in enumerate(trace.storages)
        if trace.operations[storage.operation].name == "memory pattern"
    ]

    trace.check()
    assert blocks == [256]
    assert sizes[0] == 512 + 256 + 256 + 256
    assert trace.storages[0].category is Category.WEIGHT


def planned(trace: MemoryTrace, batch: int) -> tuple[int, int]:
    """Return arena and planned block, in bytes, on the CPU, where weights and inputs lie elsewhere."""
    sizes = SizeTable(trace, TARGET).at(batch)
    block = 0
    for index, storage in enumerate(trace.storages):
        if storage.category in (Category.WEIGHT, Category.INPUT):
            sizes[index] = 0
        if trace.operations[storage.operation].name == "memory pattern":
            block = sizes[index]
    arena = OrtArena(OrtArenaPolicy())
    replay(trace.events, sizes, arena)
    arena.check()
    return arena.peak.reserved_bytes, block


LIGHT_ROWS = [row for row in RECORDED["rows"] if row["model"].startswith("light_")]


@pytest.mark.parametrize("row", LIGHT_ROWS, ids=lambda row: str(row["model"]))
def test_the_arena_grows_as_in_the_log_of_onnx_runtime(row: dict[str, Any]) -> None:
    """To the byte, for every network inside the package onnx; the log is of release 1.32 on a CPU."""
    model = read_model(LIGHT / f"{row['model']}.onnx", memory_limit=8 << 30)
    flat = flat_model(model, row["batch_size"])
    trace = inference_trace(flat, memory_pattern=True, framework="ONNX Runtime", provider="cpu")

    arena, block = planned(trace, row["batch_size"])

    assert arena == row["logged_arena_bytes"]
    # Where the block was the last thing that the arena had to grow for, its size is in the log.
    if row["last_request_bytes"] > 65536 and row["last_request_bytes"] == row["planned_block_bytes"]:
        assert block == row["last_request_bytes"]


def test_recorded_models_are_within_a_few_percent() -> None:
    """Thirteen of sixteen are exact; no other is off by more than a twentieth."""
    off = [abs(row["planned_arena_bytes"] / row["logged_arena_bytes"] - 1) for row in RECORDED["rows"]]

    assert sum(error == 0 for error in off) >= 13
    assert max(off) <= 0.0501
