"""Peaks of each phase, without disturbing the peaks that the user's program reads itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from dnnmem_tune.frontends.torch.emulated.dryrun.outcome import PhasePeak

_PEAKS = ("allocated_bytes.all.peak", "reserved_bytes.all.peak")


@dataclass(slots=True)
class PeakMeter:
    """Cuts the run of the allocator's peaks into phases, card by card."""

    phases: dict[int, list[PhasePeak]] = field(default_factory=dict)
    """Card -> its phases so far."""

    _since_reset: dict[int, list[int]] = field(default_factory=dict)
    """Card -> peaks since the user's program reset them, up to the latest cut."""

    def cut(self, name: str) -> None:
        """End the phase called ``name``; phases of one name become one."""
        if not torch.cuda.is_initialized():
            return
        for card in range(torch.cuda.device_count()):
            allocated, reserved = _read(card)
            if not reserved and card not in self.phases:
                continue
            phases = self.phases.setdefault(card, [])
            earlier = next((index for index, phase in enumerate(phases) if phase.name == name), None)
            if earlier is not None:  # with gradient accumulation a step has several forward passes
                last = phases[earlier]
                phases[earlier] = PhasePeak(
                    name=name,
                    allocated_bytes=max(allocated, last.allocated_bytes),
                    reserved_bytes=max(reserved, last.reserved_bytes),
                )
            else:
                phases.append(PhasePeak(name=name, allocated_bytes=allocated, reserved_bytes=reserved))
            kept = self._since_reset.setdefault(card, [0, 0])
            self._since_reset[card] = [max(kept[0], allocated), max(kept[1], reserved)]
            torch._C._cuda_resetPeakMemoryStats(card)

    def keep_user_peaks(self) -> None:
        """Let the program's own calls see what they would without the cuts."""
        memory: Any = torch.cuda.memory
        original_statistics: Callable[..., dict[str, Any]] = memory.memory_stats
        original_reset: Callable[..., None] = memory.reset_peak_memory_stats

        def memory_stats(device: Any = None) -> dict[str, Any]:
            statistics = original_statistics(device)
            kept = self._since_reset.get(_index(device), [0, 0])
            for key, value in zip(_PEAKS, kept, strict=True):
                if key in statistics:
                    statistics[key] = max(statistics[key], value)
            return statistics

        def reset_peak_memory_stats(device: Any = None) -> None:
            self.cut(self._current_name(_index(device)))
            self._since_reset.pop(_index(device), None)
            original_reset(device)

        modules: tuple[Any, Any] = (memory, torch.cuda)
        for module in modules:
            module.memory_stats = memory_stats
            module.reset_peak_memory_stats = reset_peak_memory_stats

    def _current_name(self, card: int) -> str:
        phases = self.phases.get(card)
        return phases[-1].name if phases else "build"


def _read(card: int) -> tuple[int, int]:
    statistics = torch._C._cuda_memoryStats(card)
    return statistics["allocated_bytes"]["all"]["peak"], statistics["reserved_bytes"]["all"]["peak"]


def _index(device: Any) -> int:
    if device is None:
        return int(torch.cuda.current_device())
    return device if isinstance(device, int) else (torch.device(device).index or 0)
