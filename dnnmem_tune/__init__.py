"""GPU memory of a training job, before it runs.

    import dnnmem_tune

    e = dnnmem_tune.estimate("train.py:build", batch_size=32, gpu="A100-40GB")
    r = dnnmem_tune.max_batch_size("train.py:build", gpu="V100-16GB")

Names are imported when they are first used, so that ``import dnnmem_tune`` costs nothing and
needs nothing but Python.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

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

if TYPE_CHECKING:
    from dnnmem_tune.api import Bounds as Bounds
    from dnnmem_tune.api import Comparison as Comparison
    from dnnmem_tune.api import EstimationSession as EstimationSession
    from dnnmem_tune.api import compare as compare
    from dnnmem_tune.api import estimate as estimate
    from dnnmem_tune.api import max_batch_size as max_batch_size
    from dnnmem_tune.decisions.batch_size import BatchSizeResult as BatchSizeResult
    from dnnmem_tune.decisions.verdict import Verdict as Verdict
    from dnnmem_tune.errors import DnnMemError as DnnMemError
    from dnnmem_tune.errors import MissingPackageError as MissingPackageError
    from dnnmem_tune.errors import TraceError as TraceError
    from dnnmem_tune.errors import UnknownDeviceError as UnknownDeviceError
    from dnnmem_tune.errors import UnsupportedError as UnsupportedError
    from dnnmem_tune.errors import UsageError as UsageError
    from dnnmem_tune.errors import WorkloadError as WorkloadError
    from dnnmem_tune.estimate.devices import DeviceProfile as DeviceProfile
    from dnnmem_tune.estimate.report import MemoryEstimate as MemoryEstimate
    from dnnmem_tune.frontends.torch.workloads.training_step import TrainingStep as TrainingStep
    from dnnmem_tune.guard import MemoryGuard as MemoryGuard


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
