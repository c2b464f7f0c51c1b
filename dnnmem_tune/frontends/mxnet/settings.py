"""How a network is trained: what of a workload's hyperparameters is MXNet's and not the network's."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

from dnnmem_tune.errors import UsageError


class Execution(StrEnum):
    """How the graph is run; memory differs by up to 90 %."""

    EXECUTOR = "executor"
    """``Module`` or ``simple_bind``: forward and backward in one static plan, made when it is bound."""

    HYBRIDIZED = "hybridized"
    """``hybridize()``: a plan for the forward and one for the backward, taken and given back in each step."""

    STATIC = "static"
    """``hybridize(static_alloc=True)``: the same plans, taken in the first step and kept."""

    IMPERATIVE = "imperative"
    """Gluon without ``hybridize``: every output is an array of its own, freed with its last reader."""


PRECISIONS = ("fp32", "fp16", "fp16-pure")
"""``fp16`` keeps a copy of the weights in single precision (``multi_precision``), ``fp16-pure`` does not."""

GRADIENT_REQUESTS = ("write", "add")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one training job."""

    execution: Execution = Execution.EXECUTOR

    optimizer: str = "sgd(momentum=0.9)"

    precision: str = "fp32"

    grad_req: str = "write"
    """``write`` or ``add``: whether gradients replace those of the last step."""

    mirror: bool = False
    """``MXNET_BACKWARD_DO_MIRROR``: recompute cheap operators in the backward."""

    training: bool = True

    @classmethod
    def split(cls, params: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Return the settings among ``params``, and what is left for the network.

        Raises:
            UsageError: If a setting has no such value.

        """
        names = {field.name for field in fields(cls)}
        given = {name: value for name, value in params.items() if name in names}
        rest = {name: value for name, value in params.items() if name not in names}
        if "execution" in given:
            given["execution"] = _execution(given["execution"])
        settings = cls(**given)
        settings._check()
        return settings, rest

    def _check(self) -> None:
        for name, choices in (("precision", PRECISIONS), ("grad_req", GRADIENT_REQUESTS)):
            value = getattr(self, name)
            if value not in choices:
                raise UsageError(f"{name} is one of {', '.join(choices)}, got {value!r}")
        for name in ("mirror", "training"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} is true or false, got {getattr(self, name)!r}")
        num_states(self.optimizer)


def _execution(value: object) -> Execution:
    try:
        return Execution(str(value))
    except ValueError as error:
        raise UsageError(f"execution is one of {', '.join(Execution)}, got {value!r}") from error


_STATES = {
    "sgd": 0, "nag": 0, "signum": 0, "signsgd": 0, "lars": 0, "adam": 2, "adamw": 2, "lamb": 2, "adagrad": 1,
    "rmsprop": 1, "adadelta": 2, "ftrl": 2, "ftml": 3, "adamax": 2, "nadam": 2,
}  # fmt: skip
"""Optimizer -> arrays of a weight's size that it keeps, without momentum.

Source: ``create_state`` of each class in ``python/mxnet/optimizer/optimizer.py`` (1.9.1).
"""

_WITH_MOMENTUM = frozenset({"sgd", "nag", "signum", "lars"})
"""Keep one array more when there is a momentum."""


def num_states(optimizer: str) -> int:
    """Return the number of arrays of a weight's size that an optimizer keeps for each weight.

    Raises:
        UsageError: If the text is no optimizer of MXNet.

    Example:
        >>> num_states("sgd(momentum=0.9)"), num_states("adam")
        (1, 2)

    """
    name, arguments = parse_optimizer(optimizer)
    if name == "rmsprop" and arguments.get("centered"):
        return 3
    # Signum's own default is a momentum of 0.9; the others' is 0.
    momentum = arguments.get("momentum", 0.9 if name == "signum" else 0.0)
    return _STATES[name] + (1 if name in _WITH_MOMENTUM and momentum else 0)


def parse_optimizer(text: object) -> tuple[str, dict[str, Any]]:
    """Split ``name(key=value, ...)`` into the name, in lower case, and the arguments.

    Raises:
        UsageError: If the text is no optimizer of MXNet.

    """
    malformed = f"optimizer {text!r} is not understood; write a name, or a call such as sgd(momentum=0.9)"
    if not isinstance(text, str):
        raise UsageError(malformed)
    try:
        expression = ast.parse(text.strip(), mode="eval").body
        call = expression if isinstance(expression, ast.Call) else ast.Call(expression, [], [])
        arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise UsageError(malformed) from error
    if not isinstance(call.func, ast.Name) or call.args or None in arguments:
        raise UsageError(malformed)
    name = call.func.id.lower()
    if name not in _STATES:
        raise UsageError(f"MXNet has no optimizer {name!r} that is known here; there are {', '.join(_STATES)}")
    return name, {str(key): value for key, value in arguments.items()}
