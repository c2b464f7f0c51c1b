"""Optimizers and precisions by the words that the command line uses."""

from __future__ import annotations

import ast
from typing import Any

import keras

from dnnmem_tune.errors import UsageError

_NAMES = {
    "adafactor": "Adafactor",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "adamw": "AdamW",
    "lamb": "Lamb",
    "lion": "Lion",
    "momentum": "SGD",
    "rmsprop": "RMSprop",
    "sgd": "SGD",
}
_POLICIES = {"fp32": "float32", "fp16": "mixed_float16", "bf16": "mixed_bfloat16"}


def make_optimizer(text: str) -> keras.optimizers.Optimizer:
    """Return the optimizer that ``text`` describes, such as ``adam`` or ``sgd(momentum=0.9)``.

    Raises:
        UsageError: If there is none of that name, or it does not take an argument.

    """
    name, arguments = _parse(text)
    if name == "momentum":
        arguments.setdefault("momentum", 0.9)
    try:
        return getattr(keras.optimizers, _NAMES[name])(**arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(f"optimizer {text!r}: {error}") from error


def set_precision(precision: str) -> None:
    """Let layers that are made from now on compute in a precision.

    Raises:
        UsageError: If there is none of that name.

    """
    if precision not in _POLICIES:
        raise UsageError(f"precision must be one of {', '.join(_POLICIES)}, got {precision!r}")
    keras.mixed_precision.set_global_policy(_POLICIES[precision])


def _parse(text: str) -> tuple[str, dict[str, Any]]:
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if isinstance(call, ast.Name):
            name, keywords = call.id, []
        elif isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
            name, keywords = call.func.id, call.keywords
        else:
            raise ValueError(text)
        arguments = {str(word.arg): ast.literal_eval(word.value) for word in keywords}
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"optimizer {text!r} cannot be read; write adam or 'sgd(momentum=0.9)'") from error
    if name.lower() not in _NAMES:
        raise UsageError(f"there is no optimizer {name!r}; choose one of {', '.join(_NAMES)}")
    if "lr" in arguments:
        arguments["learning_rate"] = arguments.pop("lr")
    return name.lower(), arguments
