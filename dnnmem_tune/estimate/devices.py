"""What an estimate needs to know of a GPU.

A profile is a value: where it comes from (catalogue, a size, the driver, a user's file) is
decided in ``dnnmem_tune.config``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dnnmem_tune.operators.scratch import KernelTarget
from dnnmem_tune.units import KIB, MIB

_VENDOR_WORDS = re.compile(r"\b(nvidia|geforce|tesla|gpu)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """One GPU, or one MIG slice of it, as a training job meets it."""

    name: str
    """As the catalogue or the driver names it, such as ``V100-16GB``."""

    total_bytes: int
    """Memory as CUDA reports it (``totalGlobalMem``): less than the nominal size, by ECC and firmware."""

    context_bytes: int
    """What a PyTorch process takes outside its allocator: CUDA context, loaded kernels, library handles."""

    context_uncertainty_bytes: int
    """The true context lies within this many bytes of ``context_bytes``, as far as is known."""

    compute_capability: tuple[int, int]
    """Major and minor, such as ``(8, 0)``."""

    num_sms: int
    """Streaming multiprocessors."""

    threads_per_sm: int
    """Largest number of resident threads on one multiprocessor."""

    occupied_bytes: int = 0
    """Memory that other processes hold (known for a local GPU only)."""

    aliases: tuple[str, ...] = ()
    """Other names the catalogue knows it by."""

    source: str = ""
    """Where ``total_bytes`` and ``context_bytes`` come from, and whether they were measured or estimated."""

    @property
    def usable_bytes(self) -> int:
        """Bytes that the allocator of a job can obtain: total, less the context and other processes' memory."""
        return max(0, self.total_bytes - self.context_bytes - self.occupied_bytes)

    def kernel_target(self, conv_workspace: str = "none") -> KernelTarget:
        """Return what the scratch rules of kernels depend on.

        Args:
            conv_workspace: Name of the convolution workspace model.

        """
        return KernelTarget(
            compute_capability=self.compute_capability,
            num_sms=self.num_sms,
            threads_per_sm=self.threads_per_sm,
            conv_workspace=conv_workspace,
        )


def threads_per_sm(compute_capability: tuple[int, int]) -> int:
    """Return the largest number of threads that one multiprocessor holds at a time.

    Source:
        CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability":
        1024 for 7.5; 1536 for 8.6, 8.7, 8.9 and 12.x; 2048 for the others from 6.0 to 10.x.

    Example:
        >>> threads_per_sm((7, 5)), threads_per_sm((8, 6)), threads_per_sm((9, 0))
        (1024, 1536, 2048)

    """
    if compute_capability == (7, 5):
        return 1024
    if compute_capability in ((8, 6), (8, 7), (8, 9)) or compute_capability[0] in (11, 12):
        return 1536
    return 2048


def typical_context(num_sms: int, num_threads: int) -> tuple[int, int]:
    """Return the context of a card on which it was not measured, and how far it may be off.

    Args:
        num_sms: Streaming multiprocessors.
        num_threads: Largest number of resident threads on one of them.

    Returns:
        Bytes of the context of a PyTorch process with cuDNN, and the uncertainty in bytes.

    Source:
        The driver backs the stack of every resident thread, 1 KiB each by default
        (``cudaLimitStackSize``). The rest, code and library handles, is 2.6 MiB for each
        multiprocessor on the two cards on which the whole was measured: 128 MiB on an RTX 3060
        (28 multiprocessors) and 524 MiB on an A100 (108), against 115 and 497 by this rule.

    Example:
        >>> context_bytes, uncertainty_bytes = typical_context(80, 2048)
        >>> context_bytes >> 20, uncertainty_bytes >> 20
        (367, 91)

    """
    context_bytes = num_sms * (num_threads * KIB + 26 * MIB // 10)
    return context_bytes, max(context_bytes // 4, 48 * MIB)


def normalize_name(text: str) -> str:
    """Return what two spellings of one card's name have in common.

    Example:
        >>> normalize_name("NVIDIA GeForce RTX 3090"), normalize_name("rtx-3090")
        ('rtx3090', 'rtx3090')

    """
    return re.sub(r"[^a-z0-9.]", "", _VENDOR_WORDS.sub("", text.lower()))
