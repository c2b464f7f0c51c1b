"""A stand-in for the package ``torch._dynamo``, which costs as much to import as torch itself.

Nothing is compiled in a trace, yet fake tensors read the compiler's settings, and eager
torch asks it to keep out of optimizers. The stand-in answers that; whoever asks for
anything else, or imports another of the package's modules, gets the real package.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from typing import Any

import torch

_NAME = "torch._dynamo"
_FOLDER = Path(torch.__file__).parent / "_dynamo"


class _Compiler(types.ModuleType):
    """Answers for a compiler that never compiles."""

    preparing = True
    """Whether the few modules that every trace needs are being imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.preparing and (_FOLDER / f"{name}.py").exists():
            return importlib.import_module(f"{_NAME}.{name}")
        return getattr(_load_the_real_package(), name)


class _RealModules:
    """Finds modules of the package for whoever imports them past the stand-in."""

    @staticmethod
    def find_spec(name: str, _path: Any, _target: Any = None) -> ModuleSpec | None:
        compiler = sys.modules.get(_NAME)
        if not name.startswith(f"{_NAME}.") or not isinstance(compiler, _Compiler) or compiler.preparing:
            return None
        _load_the_real_package()
        return spec_from_loader(name, _AlreadyLoaded(importlib.import_module(name)))


class _AlreadyLoaded(Loader):
    """Loads a module that the real package has loaded meanwhile."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def create_module(self, _spec: ModuleSpec) -> types.ModuleType:
        return self._module

    def exec_module(self, _module: types.ModuleType) -> None:
        """It has run."""


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
    compiler.preparing = False
    sys.meta_path.insert(0, _RealModules)


def _leave_alone(function: Any = None, recursive: bool = True, **_options: Any) -> Any:
    return function if function is not None else _leave_alone


def _do_nothing(*_args: Any, **_kwargs: Any) -> None:
    """Nothing is compiled."""


def _load_the_real_package() -> types.ModuleType:
    if isinstance(sys.modules.get(_NAME), _Compiler):
        del sys.modules[_NAME]
    real = importlib.import_module(_NAME)
    torch._dynamo = real
    return real
