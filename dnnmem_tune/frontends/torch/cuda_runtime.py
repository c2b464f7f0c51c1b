"""Answers of ``torch.cuda`` in a process that has no device: properties, statistics, streams and events.

Everything runs on one stream, as most training steps do. A side stream is taken for the
default one; what that leaves out (blocks that wait for another stream before they can be
used again) is said in the coverage.
"""

from __future__ import annotations

import types
from collections import defaultdict
from typing import Any

import torch

notes: list[str] = []
"""What the workload used that is not modelled; the recorder puts it into the coverage."""

_SIDE_STREAM = (
    "a side stream is used: it is taken for the default stream, so blocks held back by record_stream "
    "are free sooner than on the card"
)


class Stream:
    """The one stream there is."""

    device_index = 0
    stream_id = 0
    cuda_stream = 0

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.device = torch.device("cuda", 0)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_exception: object) -> None:
        """Nothing was changed."""

    def wait_event(self, _event: Any) -> None:
        """Return at once: everything happens in order."""

    def wait_stream(self, _stream: Any) -> None:
        """Return at once: everything happens in order."""

    def record_event(self, event: Any = None) -> Any:
        """Return an event that has happened."""
        return event if event is not None else Event()

    def synchronize(self) -> None:
        """Return at once."""

    def query(self) -> bool:
        """Everything submitted is done."""
        return True


class SideStream(Stream):
    """A stream that the workload made."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        super().__init__()
        notes.append(_SIDE_STREAM)


class Event:
    """An event that has happened."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def record(self, _stream: Any = None) -> None:
        """Return at once."""

    def wait(self, _stream: Any = None) -> None:
        """Return at once."""

    def synchronize(self) -> None:
        """Return at once."""

    def query(self) -> bool:
        """It has happened."""
        return True

    def elapsed_time(self, _end: Any) -> float:
        """No time passes in a trace; not 0, since programs divide by it."""
        return 1.0


class _DeviceContext:
    """``torch.cuda.device(0)`` and its like: there is one device."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_exception: object) -> None:
        pass


def install(compute_capability: tuple[int, int], total_bytes: int, num_sms: int, name: str) -> None:
    """Replace the functions of ``torch.cuda`` that would touch a device."""
    properties = types.SimpleNamespace(
        name=name, total_memory=total_bytes, major=compute_capability[0], minor=compute_capability[1],
        multi_processor_count=num_sms, warp_size=32, is_integrated=False, gcnArchName="", uuid="",
    )  # fmt: skip
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": compute_capability,
        "get_device_properties": properties,
        "get_device_name": name,
        "get_arch_list": [f"sm_{compute_capability[0]}{compute_capability[1]}"],
        "is_bf16_supported": compute_capability >= (8, 0),
        "is_current_stream_capturing": False,
        "mem_get_info": (total_bytes, total_bytes),
        "memory_summary": "",
        **dict.fromkeys(
            ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), 0
        ),
        **dict.fromkeys(
            ("_lazy_init", "init", "synchronize", "empty_cache", "set_device", "manual_seed", "manual_seed_all",
             "seed", "seed_all", "set_rng_state", "set_rng_state_all", "reset_peak_memory_stats",
             "reset_accumulated_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
             "set_per_process_memory_fraction", "ipc_collect", "set_stream"),
        ),
    }  # fmt: skip
    for attribute, answer in answers.items():
        setattr(torch.cuda, attribute, _always(answer))
    torch.cuda.memory_stats = lambda *_args, **_kwargs: defaultdict(int)
    torch.cuda.get_rng_state = lambda *_args, **_kwargs: torch.zeros(16, dtype=torch.uint8)
    torch.cuda.get_rng_state_all = lambda: [torch.zeros(16, dtype=torch.uint8)]
    classes: dict[str, Any] = {
        "Stream": SideStream, "ExternalStream": SideStream, "Event": Event,
        "device": _DeviceContext, "device_of": _DeviceContext, "stream": _DeviceContext,
        "StreamContext": _DeviceContext,
    }  # fmt: skip
    for attribute, replacement in classes.items():
        setattr(torch.cuda, attribute, replacement)
    for attribute in ("current_stream", "default_stream"):
        setattr(torch.cuda, attribute, lambda *_args, **_kwargs: Stream())
    torch.Tensor.record_stream = lambda *_args: None  # type: ignore[method-assign]
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.backends.cudnn.is_available = lambda: True
    torch.backends.cudnn.version = lambda: 92400


def _always(answer: Any) -> Any:
    return lambda *_args, **_kwargs: answer
