"""Which hyperparameters a workload takes, found without running it and without importing its framework."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from dnnmem_tune.errors import DnnMemError


def accepted_parameters(workload: str | Callable[..., Any]) -> frozenset[str]:
    """Return the names that a workload is known to take; what it takes beyond them is not known.

    A built-in workload, a Hugging Face, timm or torchvision model and a `TrainingStep` take the options of a
    `TrainingStep`; a function takes what its signature names.
    """
    from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep

    if isinstance(workload, TrainingStep):
        return _step_options()
    if not isinstance(workload, str):
        return _signature(workload)
    if workload.lower().endswith(".onnx"):
        return _MODEL_FILE_OPTIONS
    from dnnmem_tune.frontends.torch.workloads.references import (
        Builtin,
        FileFunction,
        HuggingFace,
        ZooModel,
        parse_reference,
    )

    try:
        reference = parse_reference(workload)
    except DnnMemError:
        return frozenset()
    match reference:
        case Builtin() | HuggingFace() | ZooModel():
            return _step_options()
        case FileFunction(path, name):
            try:
                return _parsed(path.read_text(encoding="utf-8"), name)
            except (OSError, ValueError, SyntaxError):
                return frozenset()
        case _:
            return frozenset()


_MODEL_FILE_OPTIONS = frozenset({"dims", "batch_dim", "trip_counts", "memory_pattern", "optimizer"})
"""What an ONNX model takes, besides the names of its dimensions.

Its ``precision`` is left out: it is that of every float, and no advice to train in mixed precision.
"""


def _step_options() -> frozenset[str]:
    from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep

    return frozenset(option.name for option in fields(TrainingStep))


def _signature(function: Callable[..., Any]) -> frozenset[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(parameter.name for parameter in parameters if parameter.kind in by_name)


def _parsed(source: str, name: str) -> frozenset[str]:
    """Return the argument names of the function called ``name`` at the top of a module's source."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return frozenset(argument.arg for argument in (*node.args.args, *node.args.kwonlyargs))
    return frozenset()
