"""From a reference to the workload that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dnnmem_tune.frontends.torch.workloads.builtin import load_builtin
from dnnmem_tune.frontends.torch.workloads.references import (
    Builtin,
    FileFunction,
    HuggingFace,
    ModuleFunction,
    Pickle,
    ZooModel,
    parse_reference,
)
from dnnmem_tune.frontends.torch.workloads.user_code import load_from_file, load_from_module, require_build

Build = Callable[..., Callable[[], Any]]
"""``build(batch_size, device, **hyperparameters)``, which returns ``step``."""


def load_build(reference: str) -> Build:
    """Return the workload that ``reference`` names: ``build(batch_size, device, **hyperparameters)``.

    The user's code is imported into this process.

    Args:
        reference: ``train.py:build`` (the function is ``build`` where none is given),
            ``package.module:build``, a built-in name, ``hf:CONFIG`` (a JSON file or its directory),
            ``timm:NAME``, ``torchvision:NAME``, or what `reference_of` returned.

    Raises:
        WorkloadError: If there is no such workload, or its code cannot be imported; the message is
            one line that names the file and the line.
        MissingPackageError: If it needs a package that is not installed.

    Example:
        >>> load_build("resnet50").hyperparameters["num_classes"]
        1000

    """
    build: Build
    match parse_reference(reference):
        case Builtin(name):
            return load_builtin(name)
        case HuggingFace(path):
            from dnnmem_tune.frontends.torch.workloads.huggingface import load_huggingface

            return load_huggingface(path)
        case ZooModel(package, name):
            from dnnmem_tune.frontends.torch.workloads.zoo import load_zoo_model

            return load_zoo_model(package, name)
        case FileFunction(path, name):
            build = load_from_file(path, name)
            require_build(build, f"{path}:{name}")
        case ModuleFunction(module, name):
            build = load_from_module(module, name)
            require_build(build, f"{module}:{name}")
        case Pickle(payload):
            from dnnmem_tune.frontends.torch.workloads.by_value import load_by_value

            build = load_by_value(payload)
            require_build(build, "the function")
    return build
