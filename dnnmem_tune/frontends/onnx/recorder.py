"""Traces of an ONNX model: read once, lowered anew for each batch size that a fit asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dnnmem_tune.errors import DnnMemError, UsageError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.onnx.dimensions import read_dimensions
from dnnmem_tune.frontends.onnx.flat import FlatModel
from dnnmem_tune.frontends.onnx.flattening import Flattener
from dnnmem_tune.frontends.onnx.ort_plan import inference_trace
from dnnmem_tune.frontends.onnx.reading import import_onnx, missing_external_files, read_model
from dnnmem_tune.frontends.onnx.settings import OnnxSettings, read_settings
from dnnmem_tune.frontends.onnx.simplifying import simplified
from dnnmem_tune.frontends.onnx.symbolic import symbolic_shapes
from dnnmem_tune.frontends.onnx.training import TrainingTarget, training_trace
from dnnmem_tune.ir.trace import MemoryTrace

_TRAINING_STEPS = 2
"""All steps are alike; the second shows what the first leaves to the allocator."""


class OnnxRecorder:
    """Traces of one file.

    Args:
        path: The file.
        train_as: Whose training step to write down (``pytorch``, ``tensorflow``, ``ort``); None for inference.
        memory_limit: Host memory in bytes that reading the file may take.

    """

    name = "graph"

    def __init__(self, path: Path, *, train_as: str | None, memory_limit: int) -> None:
        self._path = path
        self._train_as = train_as
        self._memory_limit = memory_limit
        self._model: Any = None

    def attempt(self, requests: Sequence[RecordRequest]) -> list[MemoryTrace | DnnMemError]:
        """Return for each request its trace, or the error that it ended with."""
        outcomes: list[MemoryTrace | DnnMemError] = []
        for request in requests:
            try:
                outcomes.append(self.record(request))
            except UsageError:
                raise  # the same at every batch size
            except DnnMemError as error:
                outcomes.append(error)
        return outcomes

    def record(self, request: RecordRequest) -> MemoryTrace:
        """Return the trace at one batch size.

        Raises:
            UsageError: If a setting or a dimension cannot be meant.
            WorkloadError: If the file holds no model, or not one that runs at these dimensions.

        """
        settings = read_settings(request.params)
        flat = self._flatten(request.batch_size, settings)
        if self._train_as is None:
            return inference_trace(
                simplified(flat), memory_pattern=settings.memory_pattern, framework=f"ONNX Runtime, {_release()}"
            )
        target = TrainingTarget(
            name=self._train_as,
            optimizer=settings.optimizer,
            compute_capability=request.compute_capability,
            float_bits=settings.float_bits,
        )
        return training_trace(
            flat, target, num_steps=_TRAINING_STEPS, framework=f"{self._train_as}, from {_release()}"
        )

    def fingerprint(self) -> str:
        """Return what a cached trace depends on besides the request."""
        try:
            content = hashlib.sha256(self._path.read_bytes()).hexdigest()
        except OSError as error:
            raise UsageError(f"the model {str(self._path)!r} cannot be read: {error.strerror}") from error
        return f"{_release()}, {self._train_as or 'inference'}, {content}"

    def close(self) -> None:
        """Forget the model; a later trace reads it again."""
        self._model = None

    def _flatten(self, batch_size: int, settings: OnnxSettings) -> FlatModel:
        if self._model is None:
            self._model = read_model(self._path, memory_limit=self._memory_limit)
        dimensions = read_dimensions(self._model, settings.batch_dim)
        shapes = dimensions.bind(batch_size, settings.dims)
        flatten = partial(
            Flattener,
            self._model,
            shapes,
            batch=(batch_size, dimensions.fixed_batch),
            trip_counts=settings.trip_counts,
        )
        flat = flatten().flatten()
        if flat.unknown:
            hints = symbolic_shapes(self._model, shapes)
            flat = flatten(hints=hints).flatten() if hints else flat
        missing = missing_external_files(self._model, self._path.parent)
        if missing:
            note = f"The weights in {', '.join(missing[:3])} are not there; their sizes are taken from the model."
            flat = replace(flat, notes=[*flat.notes, note])
        return flat


def _release() -> str:
    import_onnx()
    try:
        return f"onnx {version('onnx')}"
    except PackageNotFoundError:
        return "onnx"
