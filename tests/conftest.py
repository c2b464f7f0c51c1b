"""What tests in several folders share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# ``tests.builders`` is to be found from whatever folder the tests are started in.
ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

if TYPE_CHECKING:
    from tests.builders import FakeWorkload


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeWorkload], FakeWorkload]:
    """Return a function that makes every workload reference stand for a fake one; no framework is needed."""

    def install(fake: FakeWorkload) -> FakeWorkload:
        monkeypatch.setattr("dnnmem_tune.api.session.open_workload", fake.open)
        return fake

    return install
