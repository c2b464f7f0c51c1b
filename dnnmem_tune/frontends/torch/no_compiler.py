"""A stand-in for the package ``torch._dynamo``, which costs as much to import as torch itself.

Nothing is compiled in a trace, yet fake tensors read the compiler's settings, and eager
torch asks it to keep out of optimizers. The stand-in answers that, which is all that the
built-in workloads need; code of others may look into the compiler and gets the real one.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import torch

_NAME = "torch._dynamo"
_FOLDER = Path(torch.__file__).parent / "_dynamo"


class _Compiler(types.ModuleType):
    """Answers for a compiler that never compiles."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return importlib.import_module(f"{_NAME}.{name}")


def install() -> None:
    """Put the stand-in in the place of ``torch._dynamo``, unless that is loaded already."""
    if _NAME in sys.modules:
        return
    compiler = _Compiler(_NAME)
    compiler.__path__ = [str(_FOLDER)]
    answers: dict[str, Any] = {
        "disable": _leave_alone,
        "is_compiling": lambda: False,
        "compiled_autograd": types.SimpleNamespace(
            _disable=contextlib.nullcontext, in_compiled_autograd_region=False, compiled_autograd_enabled=False
        ),
        **dict.fromkeys(
            (
                "allow_in_graph",
                "assume_constant_result",
                "disallow_in_graph",
                "forbid_in_graph",
                "nonstrict_trace",
            ),
            _leave_alone,
        ),
        **dict.fromkeys(
            ("graph_break", "mark_static", "mark_static_address", "mark_dynamic", "maybe_mark_dynamic", "reset"),
            _do_nothing,
        ),
    }
    for name, answer in answers.items():
        setattr(compiler, name, answer)
    sys.modules[_NAME] = compiler
    torch._dynamo = compiler
    # What every trace needs of it; imported here, children of the worker need not.
    importlib.import_module(f"{_NAME}.config")
    importlib.import_module(f"{_NAME}.source")


def _leave_alone(function: Any = None, recursive: bool = True, **_options: Any) -> Any:
    return function if function is not None else _leave_alone


def _do_nothing(*_args: Any, **_kwargs: Any) -> None:
    """Nothing is compiled."""
