"""What a reference such as ``train.py:build`` or ``keras:MobileNetV2`` means for TensorFlow.

Importing this needs no TensorFlow; loading a built-in workload does.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dnnmem_tune.errors import WorkloadError
from dnnmem_tune.frontends.tensorflow.workloads.names import NAMES, canonical_name, source_files
from dnnmem_tune.frontends.torch.workloads.by_value import load_by_value
from dnnmem_tune.frontends.torch.workloads.fingerprint import workload_fingerprint
from dnnmem_tune.frontends.torch.workloads.training_step import near
from dnnmem_tune.frontends.torch.workloads.user_code import load_from_file, load_from_module

FORMS = "train.py:build, package.module:build, a built-in name or keras:NAME"

_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<name>[^:]*))?", re.DOTALL)
_MODULE = re.compile(r"(?P<module>\w+(?:\.\w+)*)(?::(?P<name>\w+(?:\.\w+)*))?")


def load_build(reference: str) -> Callable[..., Any]:
    """Return the workload that ``reference`` names: ``build(batch_size, **hyperparameters)``.

    Raises:
        WorkloadError: If there is no such workload, or its code cannot be imported.

    """
    kind, _, rest = reference.partition(":")
    if kind == "keras" and rest:
        from dnnmem_tune.frontends.tensorflow.workloads.builtin import load_application

        return load_application(rest)
    if kind == "pickle":
        return _required(load_by_value(rest), "the function")
    if file := _FILE.fullmatch(reference):
        return _required(load_from_file(Path(file["path"]), file["name"] or "build"), reference)
    if canonical_name(reference):
        from dnnmem_tune.frontends.tensorflow.workloads.builtin import load_builtin

        return load_builtin(reference)
    module = _MODULE.fullmatch(reference)
    if module and (module["name"] or "." in module["module"]):
        return _required(load_from_module(module["module"], module["name"] or "build"), reference)
    raise WorkloadError(
        f"no TensorFlow workload {reference!r}{near(reference, NAMES)}; give {FORMS} "
        f"(built in: {', '.join(NAMES)})"
    )


def fingerprint(reference: str) -> str:
    """Return a hash that changes when the source behind ``reference`` or this front-end does."""
    digest = hashlib.sha256(reference.encode())
    is_own = canonical_name(reference) is not None or reference.startswith("keras:")
    if not is_own and (_FILE.fullmatch(reference) or reference.startswith("pickle:") or ":" in reference):
        digest.update(workload_fingerprint(reference).encode())
    for file in source_files():
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _required(build: Any, shown: str) -> Callable[..., Any]:
    wanted = "a TensorFlow workload is a function build(batch_size, **hyperparameters)"
    if not callable(build):
        raise WorkloadError(f"{shown} is of type {type(build).__name__}; {wanted}")
    parameters = list(inspect.signature(build).parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise WorkloadError(f"{shown} takes no batch size as its first argument; {wanted}")
    return build
