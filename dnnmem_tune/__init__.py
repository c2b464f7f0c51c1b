"""GPU memory of a training job, before it runs.

    import dnnmem_tune

    e = dnnmem_tune.estimate("train.py:build", batch_size=32, gpu="A100-40GB")
    r = dnnmem_tune.max_batch_size("train.py:build", gpu="V100-16GB")

Names are imported when they are first used, so that ``import dnnmem_tune`` costs nothing and
needs nothing but Python.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

# The types of these names are in the stub file ``__init__.pyi``.
_EXPORTS = {
    "BatchSizeResult": "dnnmem_tune.decisions.batch_size",
    "Bounds": "dnnmem_tune.api",
    "Comparison": "dnnmem_tune.api",
    "DeviceProfile": "dnnmem_tune.estimate.devices",
    "DnnMemError": "dnnmem_tune.errors",
    "EstimationSession": "dnnmem_tune.api",
    "MemoryEstimate": "dnnmem_tune.estimate.report",
    "MemoryGuard": "dnnmem_tune.guard",
    "MissingPackageError": "dnnmem_tune.errors",
    "TraceError": "dnnmem_tune.errors",
    "TrainingStep": "dnnmem_tune.frontends.torch.workloads.training_step",
    "UnknownDeviceError": "dnnmem_tune.errors",
    "UnsupportedError": "dnnmem_tune.errors",
    "UsageError": "dnnmem_tune.errors",
    "Verdict": "dnnmem_tune.decisions.verdict",
    "WorkloadError": "dnnmem_tune.errors",
    "compare": "dnnmem_tune.api",
    "estimate": "dnnmem_tune.api",
    "max_batch_size": "dnnmem_tune.api",
}

# Loading a subpackage binds its name here. ``dnnmem_tune.estimate`` is to be the function and not the
# subpackage of the same name, which is therefore loaded first (it is empty) and its name given up.
import_module(f"{__name__}.estimate")
del globals()["estimate"]


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
