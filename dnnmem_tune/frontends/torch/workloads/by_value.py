"""How a workload given as an object reaches a worker process.

By its file and name where that finds the same object again, else by value with cloudpickle:
lambdas, closures, what a notebook or ``__main__`` defines, and every `TrainingStep`.
"""

from __future__ import annotations

import base64
import inspect
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle

from dnnmem_tune.errors import WorkloadError
from dnnmem_tune.frontends.torch.workloads import builtin
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep
from dnnmem_tune.frontends.torch.workloads.user_code import FILE_MODULE_PREFIX, require_build


def reference_of(build: Any) -> str:
    """Return a reference by which another process on this machine loads ``build``.

    Args:
        build: A workload function or a `TrainingStep`.

    Returns:
        ``/path/train.py:build`` for a function at the top of a module, a name for a built-in
        workload, else ``pickle:...``. A function of ``__main__`` goes by value: importing its file
        again would run the whole script again.

    Raises:
        WorkloadError: If it is no workload, or holds something that cannot be pickled.

    """
    require_build(build, "the workload")
    if isinstance(build, TrainingStep):
        return builtin.name_of(build) or f"pickle:{_dump(build)}"
    return locate(build)


def locate(build: Any) -> str:
    """Return where another process finds an object, or the object itself as text; see ``reference_of``.

    Raises:
        WorkloadError: If it holds something that cannot be pickled.

    """
    return _location(build) or f"pickle:{_dump(build)}"


def load_by_value(payload: str) -> Any:
    """Return the object that `reference_of` packed.

    Raises:
        WorkloadError: If the text is damaged, or the object needs a module that is not here.

    """
    try:
        search_path, pickled = pickle.loads(base64.b64decode(payload, validate=True))
        sys.path.extend(entry for entry in search_path if entry not in sys.path)
        return pickle.loads(pickled)
    except Exception as error:
        raise WorkloadError(f"the pickled workload cannot be loaded: {type(error).__name__}: {error}") from error


def pickled_bytes(payload: str) -> bytes:
    """Return the pickle of the object itself, for `pickletools`."""
    _, pickled = pickle.loads(base64.b64decode(payload))
    assert isinstance(pickled, bytes)
    return pickled


def _location(build: Any) -> str | None:
    """``file:qualname``, if that is where ``build`` can be found again."""
    module = sys.modules.get(getattr(build, "__module__", None) or "")
    qualname = getattr(build, "__qualname__", "")
    if module is None or module.__name__ == "__main__" or not inspect.isfunction(build):
        return None
    file = getattr(module, "__file__", None)
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if found is not build or file is None or not file.endswith(".py"):
        return None
    return f"{Path(file).resolve()}:{qualname}"


def _dump(build: Any) -> str:
    search_path = [str(Path(entry or ".").resolve()) for entry in sys.path]
    try:
        with _files_by_value():
            pickled = cloudpickle.dumps(build)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise WorkloadError(
            f"the workload cannot be sent to a worker process: {type(error).__name__}: {reason}; define it at the "
            "top of a module, without references to open files, locks or devices"
        ) from error
    return base64.b64encode(pickle.dumps((search_path, pickled))).decode()


@contextmanager
def _files_by_value() -> Iterator[None]:
    """Pickle by value what comes from files that were loaded under a name of our own making."""
    modules = [module for name, module in sys.modules.items() if name.startswith(FILE_MODULE_PREFIX)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
