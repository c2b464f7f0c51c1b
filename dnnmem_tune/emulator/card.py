"""What the emulated card is: capacity, capability, and policies for libraries whose choices are not public.

Runs in the user's interpreter too, so it needs nothing but Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

MIB = 1 << 20
UNLIMITED_BYTES = 16 << 40
"""A capacity no training step reaches: what a recorder asks for, so that nothing runs out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Bytes a library wants for one call: ``base + factor * operand bytes``, at most ``cap``."""

    factor: float = 0.0
    """Share of the bytes of input and output."""

    base_bytes: int = 0

    cap_bytes: int = 0
    """0 for no cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """What cuDNN and its neighbours take for themselves. The default is nothing: a lower bound.

    Workspaces of convolutions are asked for one by one (``LoadedCard.answer_convolutions``).
    """

    attention: Workspace = Workspace()
    """cuDNN attention: the engine's own, beside the buffers of the frontend inside PyTorch."""

    rnn_reserve_factor: float = 1.0
    """Of gates, cell state and output of every step of every layer."""

    cublas_handle_bytes: int = 0
    """What a cuBLAS handle takes outside PyTorch's allocator."""

    communicator_bytes: int = 0
    """What an NCCL communicator takes outside PyTorch's allocator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The card a worker process sees."""

    name: str
    """As PyTorch reports it, such as ``Tesla T4``."""

    total_bytes: int
    """What PyTorch reports as total memory."""

    capacity_bytes: int = 0
    """What there is in fact; 0 for the same. A recorder gives more, so that nothing runs out."""

    context_bytes: int
    """What the driver and loaded kernels take as soon as the context is up."""

    compute_capability: tuple[int, int]

    num_sms: int
    """Streaming multiprocessors."""

    threads_per_sm: int = 0
    """Largest number of threads resident on one multiprocessor; 0 for what the capability has."""

    num_cards: int = 1
    """Cards of this kind in the machine."""

    policies: Policies = Policies()


@dataclass(frozen=True, slots=True)
class _Architecture:
    capability: tuple[int, int]
    threads_per_sm: int
    blocks_per_sm: int
    shared_kib_per_sm: int
    shared_kib_per_block: int


# Source: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability".
_ARCHITECTURES = (
    _Architecture((6, 0), 2048, 32, 64, 48),
    _Architecture((6, 1), 2048, 32, 96, 48),
    _Architecture((7, 0), 2048, 32, 96, 96),
    _Architecture((7, 5), 1024, 16, 64, 64),
    _Architecture((8, 0), 2048, 32, 164, 163),
    _Architecture((8, 6), 1536, 16, 100, 99),
    _Architecture((8, 7), 1536, 16, 164, 163),
    _Architecture((8, 9), 1536, 24, 100, 99),
    _Architecture((9, 0), 2048, 32, 228, 227),
    _Architecture((10, 0), 2048, 32, 228, 227),
    _Architecture((12, 0), 1536, 24, 100, 99),
)


def decode_card(document: dict[str, Any]) -> Card:
    """Return the card that ``dataclasses.asdict`` wrote, as it comes out of JSON."""
    policies: dict[str, Any] = {
        name: Workspace(**value) if isinstance(value, dict) else value
        for name, value in document["policies"].items()
    }
    major, minor = document["compute_capability"]
    return Card(**{**document, "compute_capability": (major, minor), "policies": Policies(**policies)})


def missing_kernels(card: Card, kernel_archs: Sequence[str]) -> str:
    """Return a sentence where the build of PyTorch would refuse the card; empty where it has kernels for it.

    Args:
        card: The card.
        kernel_archs: Capabilities that the build has kernels for, such as ``["75", "80"]``.

    Example:
        >>> v100 = Card(name="V100", total_bytes=16 << 30, context_bytes=0, compute_capability=(7, 0), num_sms=80)
        >>> missing_kernels(v100, ["75", "80"])
        'this build of PyTorch has no kernels for capability 7.0; those for 7.5 stand in'
        >>> missing_kernels(v100, ["60", "70"])
        ''

    """
    major, minor = card.compute_capability
    known = sorted(int(arch) for arch in kernel_archs)
    if not known or known[0] <= major * 10 + minor:
        return ""
    oldest = f"{known[0] // 10}.{known[0] % 10}"
    return f"this build of PyTorch has no kernels for capability {major}.{minor}; those for {oldest} stand in"


def card_settings(card: Card, *, kernel_archs: tuple[str, ...], cudnn_version: int) -> str:
    """Return ``card`` in the form that the stub libraries read.

    Args:
        card: The card to be.
        kernel_archs: Capabilities that the installed PyTorch has kernels for, such as ``("75", "80")``.
        cudnn_version: cuDNN's version that PyTorch was compiled with, as cuDNN counts (92400).

    Returns:
        Lines ``key=value``; the keys are listed in ``src/settings.cpp``.

    """
    known = [arch for arch in _ARCHITECTURES if arch.capability <= card.compute_capability]
    architecture = known[-1] if known else _ARCHITECTURES[0]
    values: dict[str, object] = {
        "name": card.name.replace("\n", " "),
        "num_cards": card.num_cards,
        "major": card.compute_capability[0],
        "minor": card.compute_capability[1],
        "num_sms": card.num_sms,
        "threads_per_sm": card.threads_per_sm or architecture.threads_per_sm,
        "blocks_per_sm": architecture.blocks_per_sm,
        "shared_bytes_per_sm": architecture.shared_kib_per_sm << 10,
        "shared_bytes_per_block": architecture.shared_kib_per_block << 10,
        "total_bytes": card.total_bytes,
        "capacity_bytes": card.capacity_bytes,
        "context_bytes": card.context_bytes,
        "kernel_archs": ",".join(kernel_archs),
        "cudnn_version": cudnn_version,
    }
    for field in fields(card.policies):
        policy = getattr(card.policies, field.name)
        if isinstance(policy, Workspace):
            policy = f"{policy.factor!r},{policy.base_bytes},{policy.cap_bytes}"
        values[field.name] = policy
    return "".join(f"{key}={value}\n" for key, value in values.items())
