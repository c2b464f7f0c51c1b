"""A GPU of this machine as its driver describes it, through NVML.

NVML is passed in as a module, so that a few lines of fake stand for a machine in a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dnnmem_tune.errors import MissingPackageError, UnknownDeviceError
from dnnmem_tune.estimate.devices import DeviceProfile, normalize_name, threads_per_sm, typical_context

if TYPE_CHECKING:
    from types import ModuleType


def local_device(
    selector: str, *, catalogue: Mapping[str, DeviceProfile], nvml: ModuleType | None = None
) -> DeviceProfile:
    """Return a card of this machine, with the memory that other processes hold.

    Args:
        selector: Index (``0``), index and MIG instance (``0:2``), or UUID (``GPU-...``, ``MIG-...``).
            An index of a card that is divided means its first instance.
        catalogue: Known cards by normalized name; gives the context where it was measured.
        nvml: The module to ask; ``pynvml`` unless given.

    Raises:
        MissingPackageError: If ``pynvml`` is not installed.
        UnknownDeviceError: If there is no driver or no such card.

    """
    nvml = nvml if nvml is not None else _import_nvml()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise UnknownDeviceError(
            f"no GPU of this machine can be asked, since NVML does not start ({error}); "
            "name the card instead, for example V100-16GB"
        ) from error
    try:
        return _describe(nvml, _find_handle(nvml, selector), catalogue)
    except nvml.NVMLError as error:
        raise UnknownDeviceError(
            f"local:{selector} cannot be used ({error}); this machine has {nvml.nvmlDeviceGetCount()} GPUs, "
            "counted from 0"
        ) from error
    finally:
        nvml.nvmlShutdown()


def _import_nvml() -> ModuleType:
    try:
        import pynvml
    except ImportError as error:
        raise MissingPackageError(
            "a local GPU is found with the package 'nvidia-ml-py', which is not installed; "
            'run pip install "dnnmem-tune[nvml]", or name the card'
        ) from error
    module: ModuleType = pynvml
    return module


def _find_handle(nvml: Any, selector: str) -> Any:
    if selector.upper().startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(selector)
    index, _, instance = selector.partition(":")
    if not index.isdecimal() or not (instance.isdecimal() or not instance):
        raise UnknownDeviceError(
            f"local:{selector} is no local GPU; write local, local:1, local:0:2 for a MIG instance, or local:UUID"
        )
    card = nvml.nvmlDeviceGetHandleByIndex(int(index))
    if not instance and not _is_divided(nvml, card):
        return card
    return nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, int(instance or 0))


def _is_divided(nvml: Any, card: Any) -> bool:
    """Whether MIG is on; cards without MIG answer with an error."""
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(card)
    except nvml.NVMLError:
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _describe(nvml: Any, handle: Any, catalogue: Mapping[str, DeviceProfile]) -> DeviceProfile:
    name = _text(nvml.nvmlDeviceGetName(handle))
    is_slice = bool(nvml.nvmlDeviceIsMigDeviceHandle(handle))
    card = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if is_slice else handle
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(card)
    capability = (int(major), int(minor))
    total_bytes, occupied_bytes = _memory(nvml, handle)
    known = catalogue.get(normalize_name(name))
    num_sms = _num_sms(nvml, handle, is_slice, known, capability)
    threads = threads_per_sm(capability)
    context_bytes, uncertainty_bytes = typical_context(num_sms, threads)
    context_source = "estimated from the number of multiprocessors"
    if known is not None and known.num_sms == num_sms:
        context_bytes, uncertainty_bytes = known.context_bytes, known.context_uncertainty_bytes
        context_source = f"as for {known.name} in the catalogue"
    return DeviceProfile(
        name=name,
        total_bytes=total_bytes,
        context_bytes=context_bytes,
        context_uncertainty_bytes=uncertainty_bytes,
        compute_capability=capability,
        num_sms=num_sms,
        threads_per_sm=threads,
        occupied_bytes=occupied_bytes,
        source=f"total and occupied: NVML, this machine; context: {context_source}",
    )


def _memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """Return the memory that CUDA reports, and what is in use.

    Since driver 510, NVML's total holds what the driver keeps for itself; the second version of
    the call tells it apart. Older drivers have only the first, whose total is CUDA's.
    """
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError, TypeError):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return int(memory.total), int(memory.used)
    return int(memory.total - memory.reserved), int(memory.used)


def _num_sms(
    nvml: Any, handle: Any, is_slice: bool, known: DeviceProfile | None, capability: tuple[int, int]
) -> int:
    if is_slice:
        return int(nvml.nvmlDeviceGetAttributes(handle).multiprocessorCount)
    if known is not None:
        return known.num_sms
    # FP32 cores of one multiprocessor; CUDA C++ Programming Guide, arithmetic instructions.
    cores = 64 if capability in ((6, 0), (7, 0), (7, 5), (8, 0)) else 128
    return int(nvml.nvmlDeviceGetNumGpuCores(handle)) // cores


def _text(value: str | bytes) -> str:
    """Old releases of ``pynvml`` give bytes."""
    return value.decode() if isinstance(value, bytes) else value
