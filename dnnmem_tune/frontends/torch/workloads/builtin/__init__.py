"""Built-in workloads: well-known architectures in plain torch, each a `TrainingStep`.

Parameter counts equal those of the published implementations, which each file names. A workload
is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from dnnmem_tune.errors import WorkloadError
from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep, near

_MODULES = {
    "bert-base": "bert",
    "bert-large": "bert",
    "gpt2": "gpt2",
    "inception_v3": "inception",
    "lstm": "lstm",
    "mlp": "mlp",
    "resnet50": "resnet",
    "unet": "unet",
    "vgg16": "vgg",
    "vit_b_16": "vit",
}
"""Name of the workload -> module, where its variable has the name with ``-`` as ``_``, in capitals."""

NAMES = tuple(sorted(_MODULES))


def canonical_name(name: str) -> str | None:
    """Return the registered spelling of ``name`` (case, ``-`` and ``_`` do not matter), or None.

    Example:
        >>> canonical_name("BERT_large")
        'bert-large'

    """
    return {_fold(known): known for known in NAMES}.get(_fold(name))


def load_builtin(name: str) -> TrainingStep:
    """Return a built-in workload.

    Raises:
        WorkloadError: If there is none of that name.

    """
    known = canonical_name(name)
    if known is None:
        raise WorkloadError(f"no built-in workload {name!r}{near(name, NAMES)}; there are {', '.join(NAMES)}")
    module = importlib.import_module(f"{__name__}.{_MODULES[known]}")
    workload = getattr(module, known.replace("-", "_").upper())
    assert isinstance(workload, TrainingStep)
    return workload


def name_of(workload: TrainingStep) -> str | None:
    """Return the name under which ``workload`` is built in, or None."""
    module = getattr(workload.model, "__module__", "")
    names = (name for name, file in _MODULES.items() if module == f"{__name__}.{file}")
    return next((name for name in names if load_builtin(name) is workload), None)


def source_files() -> list[Path]:
    """Return the files that decide what the built-in workloads do."""
    return sorted(Path(__file__).parent.parent.rglob("*.py"))


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")
