"""One traced job: the workload's step as a graph, optimised, scheduled and lowered to a trace."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import tensorflow as tf

from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.tensorflow.calls import LOOPS
from dnnmem_tune.frontends.tensorflow.grappler import optimise
from dnnmem_tune.frontends.tensorflow.lower import lower_graph
from dnnmem_tune.frontends.tensorflow.step import TracedStep, trace_step
from dnnmem_tune.frontends.tensorflow.workloads.references import load_build
from dnnmem_tune.ir.graph import Graph
from dnnmem_tune.ir.trace import MemoryTrace
from dnnmem_tune.liveness.lower import lower
from dnnmem_tune.liveness.schedule import first_ready_first

_FAST_NOTE = (
    "The graph was not optimised before it was estimated (fast recorder): for most models that moves the peak by "
    "a few per cent, for one of fourteen by 52 %."
)

_LOOP_NOTE = (
    "The step has loops, so the graph was estimated as it was traced, before TensorFlow's graph optimiser."
)


def record_job(reference: str, request: RecordRequest, *, fast: bool = False) -> MemoryTrace:
    """Return the trace of ``request.num_steps`` training steps.

    Args:
        reference: The workload.
        request: What to build and for which device.
        fast: Estimate the graph as it was traced, without Grappler.

    """
    graph = graph_of(reference, request, fast=fast)
    return lower(graph, first_ready_first(graph), num_steps=request.num_steps)


def graph_of(reference: str, request: RecordRequest, *, fast: bool = False) -> Graph:
    """Return the graph of one step; see ``record_job``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = trace_step(load_build(reference), request.batch_size, request.params)
        executed, step = _executed(step, request, fast)
    return lower_graph(
        executed, step, batch_size=request.batch_size, recorder="graph" if fast else "graph, optimised by Grappler"
    )


def _executed(step: TracedStep, request: RecordRequest, fast: bool) -> tuple[tf.Graph, TracedStep]:
    if fast:
        return step.function.graph, replace(step, notes=(*step.notes, _FAST_NOTE))
    if any(operation.type in LOOPS for operation in step.function.graph.get_operations()):
        # Grappler takes loops apart, and with them what says how often they run.
        return step.function.graph, replace(step, notes=(*step.notes, _LOOP_NOTE))
    graph: Any = optimise(
        step.function,
        compute_capability=request.compute_capability,
        total_bytes=request.total_bytes,
        num_sms=request.num_sms,
    )
    return graph, step
