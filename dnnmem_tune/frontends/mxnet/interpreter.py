"""Which Python runs the MXNet worker: one that has MXNet 1.9.1 and a numpy it can use."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from dnnmem_tune.errors import MissingPackageError

VARIABLE = "DNNMEM_MXNET_PYTHON"
"""Environment variable that names the interpreter."""

_PLACES = (".venv-mxnet/bin/python",)
_MAKE = "python3 -m venv .venv-mxnet && .venv-mxnet/bin/pip install mxnet==1.9.1 numpy==1.23.5"


def find_interpreter(environment: Mapping[str, str], folders: tuple[Path, ...] | None = None) -> str:
    """Return the interpreter that ``DNNMEM_MXNET_PYTHON`` names, or the one of ``.venv-mxnet``.

    Args:
        environment: Environment variables.
        folders: Where ``.venv-mxnet`` may lie; the working folder and the checkout unless given.

    Raises:
        MissingPackageError: If there is none; the message has the command that makes one.

    """
    named = environment.get(VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise MissingPackageError(
                f"{VARIABLE} names {named!r}, which is no program; "
                f"name a Python with MXNet, such as one made by: {_MAKE}"
            )
        return found
    checkout = Path(__file__).resolve().parents[3]
    for folder in folders if folders is not None else (Path(), checkout):
        for place in _PLACES:
            if (folder / place).is_file():
                return str((folder / place).absolute())
    raise MissingPackageError(
        "the MXNet front-end needs a Python of its own with MXNet 1.9.1 and an old numpy, and there is none; "
        f"run {_MAKE}, or name another with {VARIABLE}"
    )
