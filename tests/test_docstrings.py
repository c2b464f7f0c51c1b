"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

import dnnmem_tune

_OF_A_WORKER = ("dnnmem_tune.frontends.", "dnnmem_tune.integrations.", "dnnmem_tune.emulator.")
"""These import a framework, or the host of a search, and have tests of their own."""


def modules() -> list[str]:
    """Names of the modules that import no framework."""
    found = pkgutil.walk_packages(dnnmem_tune.__path__, "dnnmem_tune.")
    return sorted(module.name for module in found if not module.name.startswith(_OF_A_WORKER))


def run(module: ModuleType) -> doctest.TestResults:
    """Run the examples of one module."""
    return doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)


@pytest.mark.parametrize("name", modules())
def test_the_examples_of_a_module_give_what_they_show(name: str) -> None:
    """A reader copies them."""
    assert run(importlib.import_module(name)).failed == 0


def test_there_are_examples_to_run() -> None:
    """A loop over nothing would pass as well."""
    attempted = [run(importlib.import_module(name)).attempted for name in modules()]
    assert sum(attempted) > 30
