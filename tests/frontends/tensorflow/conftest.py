"""Workers are shared by the tests of this folder: each costs an import of TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numpy")

WORKLOADS = Path(__file__).with_name("workloads.py")
