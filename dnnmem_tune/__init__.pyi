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

__version__: str
