"""The package as it is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dnnmem_tune


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_import_loads_nothing_but_python() -> None:
    """An import in a training script must not cost half a second, nor need numpy."""
    heavy = _run(
        "import sys, dnnmem_tune; print([m for m in sys.modules if m.split('.')[0] in "
        "('numpy', 'pydantic', 'rich', 'typer', 'torch')])"
    )

    assert heavy == "[]"


@pytest.mark.parametrize("first", ["dnnmem_tune.estimate.report", "dnnmem_tune.api", "dnnmem_tune"])
def test_estimate_is_the_function_whatever_was_imported_first(first: str) -> None:
    """A subpackage has the same name, and importing it binds that name."""
    kind = _run(f"import {first}, dnnmem_tune; print(type(dnnmem_tune.estimate).__name__)")

    assert kind == "function"


def test_every_exported_name_can_be_used() -> None:
    """And is listed by ``dir``."""
    for name in vars(dnnmem_tune)["_EXPORTS"]:
        assert getattr(dnnmem_tune, name) is not None
        assert name in dir(dnnmem_tune)


def test_unknown_name_is_an_attribute_error() -> None:
    """As of any module."""
    with pytest.raises(AttributeError, match=r"^module 'dnnmem_tune' has no attribute 'estimates'$"):
        dnnmem_tune.estimates  # type: ignore[attr-defined]  # noqa: B018
