"""Optimizers by name: ``adamw``, ``SGD``, ``sgd(momentum=0.9, fused=True)``."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from typing import Any

import torch

from dnnmem_tune.errors import UsageError
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep, check_names, near

_REQUIRED_LEARNING_RATE = 1e-3
"""For the optimizers whose ``lr`` has no default in an older torch (SGD before 2.3)."""


def make_optimizer(spec: TrainingStep, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer that ``spec`` asks for, over ``parameters``.

    Raises:
        UsageError: If there is nothing to train, or the name or an argument is unknown.

    """
    if not parameters:
        raise UsageError("the model has no parameter to train; check 'trainable' and requires_grad")
    if not isinstance(spec.optimizer, str):
        return spec.optimizer(parameters)  # type: ignore[no-any-return]  # the user's function
    name, arguments = _parse(spec.optimizer)
    optimizer_class = _optimizer_class(name)
    options = {
        "lr": spec.learning_rate, "momentum": spec.momentum, "weight_decay": spec.weight_decay,
        "foreach": spec.foreach, "fused": spec.fused,
    }  # fmt: skip
    arguments |= {key: value for key, value in options.items() if value is not None}
    accepted = inspect.signature(optimizer_class).parameters
    check_names(arguments, [parameter for parameter in accepted if parameter != "params"], of=f"optimizer {name}")
    if accepted["lr"].default is inspect.Parameter.empty:
        arguments.setdefault("lr", _REQUIRED_LEARNING_RATE)
    return optimizer_class(parameters, **arguments)


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    """Split ``name(key=literal, ...)`` into the name and the arguments."""
    malformed = f"optimizer {text!r} is not understood; write a name, or a call such as sgd(momentum=0.9)"
    try:
        expression = ast.parse(text.strip(), mode="eval").body
        call = expression if isinstance(expression, ast.Call) else ast.Call(expression, [], [])
        arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise UsageError(malformed) from error
    if not isinstance(call.func, ast.Name) or call.args or None in arguments:
        raise UsageError(malformed)
    return call.func.id, {str(key): value for key, value in arguments.items()}


def _optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    known = {
        key.lower(): value
        for key, value in vars(torch.optim).items()
        if isinstance(value, type)
        and issubclass(value, torch.optim.Optimizer)
        and value is not torch.optim.Optimizer
    }
    if name.lower() not in known:
        raise UsageError(
            f"torch.optim has no optimizer {name!r}{near(name, known)}; it has {', '.join(sorted(known))}"
        )
    return known[name.lower()]
