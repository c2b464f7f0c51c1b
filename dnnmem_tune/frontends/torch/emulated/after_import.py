"""Call a function when a module has been imported, or before it is. Imports no torch."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def when_imported(
    name: str, then: Callable[[ModuleType], None], *, before: Callable[[], None] | None = None
) -> None:
    """Call ``then`` with the module ``name`` once it is there; at once if it is there already.

    Args:
        name: Full name of the module.
        then: Called after the module has been executed.
        before: Called before, where the module is not there yet.

    """
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, then, before))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, then: Callable[[ModuleType], None], before: Callable[[], None] | None) -> None:
        self._name = name
        self._then = then
        self._before = before
        self._is_busy = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        # Asking the other finders leads here again; and a look for a module is not yet its import.
        if name != self._name or self._is_busy:
            return None
        self._is_busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_busy = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def prepare(self) -> None:
        """Call what is to come before the module is there, even in ``sys.modules``."""
        if self._before is not None:
            self._before()

    def load(self, module: ModuleType, inner: Any) -> None:
        """Execute the module with its own loader, and call what waits for it."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = inner
        inner.exec_module(module)
        self._then(module)


class _Loader(importlib.abc.Loader):
    """Another loader, with calls around the execution."""

    def __init__(self, inner: Any, finder: _Finder) -> None:
        self._inner = inner
        self._finder = finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        self._finder.prepare()
        module: ModuleType | None = self._inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._finder.load(module, self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
