"""One binding for every batch size, from bindings at a few.

The nodes of a network do not depend on the batch size, and the extents of every entry are
affine in it. The *plan* is not: which of two blocks is the larger may change. So shapes are
fitted, and the plan is made anew for each batch size, which takes milliseconds.

Source: measured on the paper's five networks and the model zoo: plans from fitted shapes
are those from bound ones at every batch size tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dnnmem_tune.frontends.mxnet.bound import BoundGraph, Entry
from dnnmem_tune.frontends.mxnet.lowering import BoundJob


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedJob:
    """A job whose shapes are known at every batch size above 1."""

    first_batch: int

    first: BoundJob
    """As bound at ``first_batch``."""

    slopes: tuple[tuple[tuple[int, ...], ...], ...]
    """For each graph and each entry: what every extent gains with one sample more."""

    def at(self, batch_size: int) -> BoundJob:
        """Return the job at ``batch_size``, as MXNet would bind it."""
        more = batch_size - self.first_batch
        graphs = [
            _grown(graph, slopes, more) for graph, slopes in zip(_graphs(self.first), self.slopes, strict=True)
        ]
        return replace(self.first, network=graphs[0], loss=graphs[1] if len(graphs) > 1 else None)


def fit_job(bound: Mapping[int, BoundJob]) -> FittedJob | None:
    """Return the job at every batch size, if two bindings give it and all further ones agree.

    Args:
        bound: Batch size -> job; bindings at batch 1 say nothing of others and are not used.

    """
    batch_sizes = sorted(batch_size for batch_size in bound if batch_size > 1)
    if len(batch_sizes) < 3:
        return None
    first, second, *others = batch_sizes
    graphs = list(zip(_graphs(bound[first]), _graphs(bound[second]), strict=False))
    slopes = [_slopes(here, there, second - first) for here, there in graphs]
    if len(slopes) != len(_graphs(bound[first])) or any(slope is None for slope in slopes):
        return None
    fitted = FittedJob(
        first_batch=first, first=bound[first], slopes=tuple(slope for slope in slopes if slope is not None)
    )
    agree = all(_same(fitted.at(batch_size), bound[batch_size]) for batch_size in others)
    return fitted if agree else None


def _graphs(job: BoundJob) -> list[BoundGraph]:
    return [job.network] if job.loss is None else [job.network, job.loss]


def _same(fitted: BoundJob, bound: BoundJob) -> bool:
    return [(graph.nodes, graph.entries) for graph in _graphs(fitted)] == [
        (graph.nodes, graph.entries) for graph in _graphs(bound)
    ]


def _slopes(here: BoundGraph, there: BoundGraph, step: int) -> tuple[tuple[int, ...], ...] | None:
    if here.nodes != there.nodes or len(here.entries) != len(there.entries):
        return None
    slopes = []
    for low, high in zip(here.entries, there.entries, strict=True):
        if len(low.shape) != len(high.shape):
            return None
        gains = [divmod(more - less, step) for less, more in zip(low.shape, high.shape, strict=True)]
        if any(rest for _, rest in gains):
            return None
        slopes.append(tuple(gain for gain, _ in gains))
    return tuple(slopes)


def _grown(graph: BoundGraph, slopes: tuple[tuple[int, ...], ...], more: int) -> BoundGraph:
    entries = tuple(
        Entry(tuple(extent + gain * more for extent, gain in zip(entry.shape, gains, strict=True)), entry.itemsize)
        if any(gains)
        else entry
        for entry, gains in zip(graph.entries, slopes, strict=True)
    )
    return replace(graph, entries=entries, total_mebibytes=0)
