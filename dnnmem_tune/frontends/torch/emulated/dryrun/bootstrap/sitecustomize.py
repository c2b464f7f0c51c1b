"""Start a dry run in each Python process of the user's command; see the package's docstring.

Python imports this module by itself, because its folder stands first in PYTHONPATH.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def _import_the_users_own() -> None:
    """Another ``sitecustomize`` may have been there before."""
    others = [folder for folder in sys.path if Path(folder or ".").resolve() != _HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _start(setup: str) -> None:
    # At the end: nothing beside this package may hide a module of the user's.
    sys.path.append(str(_HERE.parents[5]))
    from dnnmem_tune.frontends.torch.emulated.dryrun.inside import wait_for_torch

    wait_for_torch(setup)


_import_the_users_own()
if os.environ.get("DNNMEM_DRYRUN"):
    _start(os.environ["DNNMEM_DRYRUN"])
