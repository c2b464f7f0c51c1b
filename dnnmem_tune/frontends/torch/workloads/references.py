"""What a reference such as ``train.py:build`` or ``hf:config.json`` means, as a value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dnnmem_tune.errors import WorkloadError
from dnnmem_tune.frontends.torch.workloads import builtin
from dnnmem_tune.frontends.torch.workloads.training_step import near

DEFAULT_FUNCTION = "build"

FORMS = "train.py:build, package.module:build, a built-in name, hf:CONFIG, timm:NAME or torchvision:NAME"


@dataclass(frozen=True, slots=True)
class FileFunction:
    """A function (or `TrainingStep`) of a Python file."""

    path: Path
    name: str


@dataclass(frozen=True, slots=True)
class ModuleFunction:
    """A function (or `TrainingStep`) of an importable module."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Builtin:
    """A built-in workload by its registered name."""

    name: str


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """A Hugging Face configuration: a JSON file, or a directory that holds ``config.json``."""

    path: Path


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A model that a package makes by name."""

    package: str
    name: str


@dataclass(frozen=True, slots=True)
class Pickle:
    """A function sent by value."""

    payload: str


Reference = FileFunction | ModuleFunction | Builtin | HuggingFace | ZooModel | Pickle

_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<name>[^:]*))?", re.DOTALL)
_MODULE = re.compile(r"(?P<module>\w+(?:\.\w+)*)(?::(?P<name>\w+(?:\.\w+)*))?")


def parse_reference(text: str) -> Reference:
    """Return what ``text`` refers to, without looking whether it exists.

    Raises:
        WorkloadError: If it has none of the known forms.

    Example:
        >>> parse_reference("models.py")
        FileFunction(path=PosixPath('models.py'), name='build')
        >>> parse_reference("ResNet50")
        Builtin(name='resnet50')

    """
    match text.partition(":"):
        case ("hf", ":", path) if path:
            return HuggingFace(Path(path))
        case ("timm" | "torchvision" as package, ":", name) if name:
            return ZooModel(package, name)
        case ("pickle", ":", payload) if payload:
            return Pickle(payload)
    if file := _FILE.fullmatch(text):
        return FileFunction(Path(file["path"]), file["name"] or DEFAULT_FUNCTION)
    if known := builtin.canonical_name(text):
        return Builtin(known)
    module = _MODULE.fullmatch(text)
    if module and (module["name"] or "." in module["module"]):
        return ModuleFunction(module["module"], module["name"] or DEFAULT_FUNCTION)
    raise WorkloadError(
        f"no workload {text!r}{near(text, builtin.NAMES)}; give {FORMS} (built in: {', '.join(builtin.NAMES)})"
    )
