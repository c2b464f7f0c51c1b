"""Fake tensors for a CUDA device that is not there, with less work for each operator.

Nine tenths of the time of a trace is spent around fake tensors: wrappers that keep the
compiler out, and the key of torch's cache of operator results. Both are made cheaper
here; what an operator gives is torch's own answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_PLAIN = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout}
)


class FakeCudaMode(FakeTensorMode):
    """Fake tensors for a device that torch believes in but that must not be touched."""

    @property
    def avoid_device_init(self) -> bool:
        """``torch.cuda.is_available()`` says yes here; no device may be initialised."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in a trace, so nothing has to be kept from the compiler."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.dispatch(func, types, args, kwargs or {})

    def _prep_args_for_hash(
        self, result: list[object], args: Any, state: Any, id_hashed_objects: list[object]
    ) -> None:
        """Key the cache by what decides an operator's result for dense tensors; leave the rest to torch."""
        if type(args) not in (tuple, list):
            super()._prep_args_for_hash(result, args, state, id_hashed_objects)
            return
        result += (type(args), len(args))
        for arg in args:
            kind = type(arg)
            if (
                kind is FakeTensor
                and arg.layout is torch.strided
                and arg.constant is None
                and self.is_our_fake(arg)
            ):
                result += _metadata(arg)
            elif kind in _PLAIN:
                result += (kind, arg)
            elif kind is tuple or kind is list:
                self._prep_args_for_hash(result, arg, state, id_hashed_objects)
            else:
                super()._prep_args_for_hash(result, (arg,), state, id_hashed_objects)


def _metadata(tensor: FakeTensor) -> Iterable[object]:
    return (
        tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.fake_device,
        tensor.untyped_storage().nbytes(), tensor.requires_grad, tensor.is_conj(), tensor.is_neg(),
        tensor.is_inference(),
    )  # fmt: skip
