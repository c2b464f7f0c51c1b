"""What optimizers keep for each weight, and take while they update."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dnnmem_tune.errors import UsageError
from dnnmem_tune.operators.differentiation import PYTORCH

_FORM = re.compile(r"\s*(?P<name>[A-Za-z]+)\s*(?:\((?P<options>[^()]*)\))?\s*")

_STATES = {
    "sgd": (),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
    "nadam": ("exp_avg", "exp_avg_sq"),
    "rmsprop": ("square_avg",),
    "adagrad": ("sum",),
    "adadelta": ("square_avg", "acc_delta"),
    "lamb": ("exp_avg", "exp_avg_sq"),
    "lion": ("exp_avg",),
}

_TEMPORARIES = {"adam": 1, "adamw": 1, "nadam": 1, "rmsprop": 1, "adagrad": 1, "adadelta": 2, "lamb": 1, "lion": 1}
"""Copies of all weights that a step takes for a moment.

Source: the ``foreach`` implementations in ``torch/optim``, PyTorch's default on a GPU (``_foreach_sqrt`` in
``adam.py``).
"""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer."""

    name: str

    states: tuple[str, ...]
    """What it keeps, each of a weight's size, for each weight."""

    def num_temporaries(self, target: str) -> int:
        """Return how many copies of the weights that are updated together one update takes for a moment."""
        return _TEMPORARIES.get(self.name, 0) if target == PYTORCH else 0


def parse_optimizer(text: str) -> Optimizer:
    """Return the optimizer that a text names.

    Args:
        text: ``adam``, or with options that change what it keeps: ``sgd(momentum=0.9)``, ``adam(amsgrad=True)``.

    Raises:
        UsageError: If it is none of those known here.

    Example:
        >>> parse_optimizer("sgd(momentum=0.9)").states
        ('momentum_buffer',)

    """
    match = _FORM.fullmatch(text)
    name = match["name"].lower() if match else ""
    if match is None or name not in _STATES:
        raise UsageError(
            f"there is no optimizer {text!r} for ONNX models; choose one of {', '.join(sorted(_STATES))}"
        )
    options = dict(option.split("=", 1) for option in (match["options"] or "").split(",") if "=" in option)
    chosen = {key.strip(): value.strip() for key, value in options.items()}
    states = _STATES[name]
    if name in ("sgd", "rmsprop") and chosen.get("momentum", "0") not in ("0", "0.0"):
        states = (*states, "momentum_buffer")
    if name.startswith("adam") and chosen.get("amsgrad") == "True":
        states = (*states, "max_exp_avg_sq")
    return Optimizer(name, states)
