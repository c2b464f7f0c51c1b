"""Fourier transforms: cuFFT's workspace, copies it asks for, and passes over more than three dimensions.

cuFFT transforms at most three dimensions at once; further passes alternate between two
buffers, the last of which is the result.

Source: ``aten/src/ATen/native/cuda/SpectralOps.cpp`` and ``CuFFTPlanCache.h``, torch 2.14.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from dnnmem_tune.frontends.torch.plans.registry import Action, Give, Output, Take, memory_plan
from dnnmem_tune.ir.size import Polynomial
from dnnmem_tune.ir.trace import Category
from dnnmem_tune.operators.spectral import cufft_workspace_bytes

if TYPE_CHECKING:
    from dnnmem_tune.frontends.torch.recorder import Recorder

aten = torch.ops.aten

_MAX_DIMENSIONS = 3


@dataclass(slots=True)
class _Buffer:
    """A tensor that the operator works on: its layout, and the number of its allocation, if it has one."""

    shape: list[int]
    strides: list[int]
    allocation: int | None = None


@dataclass(slots=True)
class _Passes:
    """The allocations of one operator, in order; a negative number gives one back."""

    complex_bytes: int
    steps: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    workspaces: set[int] = field(default_factory=set)

    def allocate(self, nbytes: int) -> int:
        self.sizes.append(nbytes)
        self.steps.append(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def free(self, allocation: int | None) -> None:
        if allocation is not None:
            self.steps.append(~allocation)

    def empty(self, shape: Sequence[int], element_bytes: int) -> _Buffer:
        allocation = self.allocate(math.prod(shape) * element_bytes)
        return _Buffer(list(shape), _contiguous(shape), allocation)

    def run(
        self, source: _Buffer, result: _Buffer, shape: Sequence[int], dims: Sequence[int], *, real: bool
    ) -> None:
        """``_exec_fft``: transform ``dims`` of ``source`` into ``result``, whose strides change."""
        batch_dims = [dim for dim in range(len(source.shape)) if dim not in dims]
        batch_dims.sort(key=lambda dim: -source.strides[dim])
        batch = math.prod(source.shape[dim] for dim in batch_dims)
        extents = [source.shape[dim] for dim in dims]
        signal = [max(source.shape[dim], shape[dim]) for dim in dims]
        copy: int | None = None
        batch_stride = _merged_stride(source, batch_dims)
        strides = [source.strides[dim] for dim in dims]
        element_bytes = self.complex_bytes // (2 if real else 1)
        if batch_stride is None or not _embeds(batch, batch_stride, signal, strides):
            copy = self.allocate(batch * math.prod(extents) * element_bytes)
        workspace = self.allocate(cufft_workspace_bytes(batch, signal))
        self.workspaces.add(workspace)
        self.free(workspace)
        self.free(copy)
        inner = _contiguous([batch, *(shape[dim] for dim in dims)])
        result.shape = list(shape)
        stride = inner[0]
        for dim in reversed(batch_dims):
            result.strides[dim] = stride
            stride *= shape[dim]
        for dim, inner_stride in zip(dims, inner[1:], strict=True):
            result.strides[dim] = inner_stride

    def actions(self, output: torch.Tensor, result: _Buffer) -> Iterator[Action]:
        """Yield the actions, with the operator's output in the place of the buffer that holds the result."""
        numbers: dict[int, int] = {}
        for step in self.steps:
            allocation = step if step >= 0 else ~step
            if allocation == result.allocation:
                if step >= 0:
                    yield Output(output)
            elif step < 0:
                yield Give(numbers[allocation])
            else:
                numbers[allocation] = len(numbers)
                category = Category.WORKSPACE if allocation in self.workspaces else Category.TEMPORARY
                yield Take(Polynomial(self.sizes[allocation]), category)


@memory_plan(aten._fft_c2c.default)
def complex_to_complex(_recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """``_fft_c2c_cufft``."""
    tensor, dims = args[0], list(args[1])
    passes = _Passes(tensor.element_size())
    result = _transform_complex(passes, _layout(tensor), dims)
    return passes.actions(outputs, result)


def _transform_complex(passes: _Passes, source: _Buffer, dims: list[int]) -> _Buffer:
    shape = source.shape
    result = passes.empty(shape, passes.complex_bytes)
    if not dims:
        return result
    working, remaining, spare = source, dims, None
    while True:
        remaining = sorted(remaining, key=lambda dim: -working.strides[dim])
        passes.run(working, result, shape, remaining[-_MAX_DIMENSIONS:], real=False)
        remaining = remaining[:-_MAX_DIMENSIONS]
        if not remaining:
            break
        if spare is None:
            working, spare = result, result
            result = passes.empty(shape, passes.complex_bytes)
        else:
            working, result = result, working
    if spare is not None:
        passes.free(working.allocation)
    return result


@memory_plan(aten._fft_r2c.default)
def real_to_complex(_recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """``_fft_r2c_cufft``."""
    tensor, dims, _normalization, one_sided = args
    dims = list(dims)
    passes = _Passes(2 * tensor.element_size())
    full = list(tensor.shape)
    half = list(full)
    half[dims[-1]] = full[dims[-1]] // 2 + 1
    shape = half if one_sided else full
    result = passes.empty(shape, passes.complex_bytes)
    source = _layout(tensor)
    if tensor.storage_offset() % 2:
        source = _aligned(passes, source, dims[-1], tensor.element_size())
    if _at_once(dims):
        passes.run(source, result, shape, dims, real=True)
        working = source
    else:
        passes.run(source, result, shape if len(dims) == 1 else half, dims[-1:], real=True)
        working = source
        if len(dims) > 1:
            passes_left = dims[:-1]
            working = passes.empty(shape, passes.complex_bytes)
            passes.free(source.allocation)
            while passes_left:
                result, working = working, result
                passes_left.sort(key=lambda dim: -working.strides[dim])
                passes.run(working, result, half, passes_left[-_MAX_DIMENSIONS:], real=False)
                passes_left = passes_left[:-_MAX_DIMENSIONS]
    if not one_sided and result.shape != full:
        # The half is copied into a whole: into the spare buffer, or into a new one.
        if working.allocation is None or working is source:
            working = passes.empty(full, passes.complex_bytes)
        result, working = working, result
    if working is not source or working.allocation is not None:
        passes.free(working.allocation)
    return passes.actions(outputs, result)


@memory_plan(aten._fft_c2r.default)
def complex_to_real(_recorder: Recorder, args: Any, _kwargs: Any, outputs: Any) -> Iterator[Action]:
    """``_fft_c2r_cufft``: cuFFT may overwrite the input, which is copied first."""
    tensor, dims, _normalization, last = args
    dims = list(dims)
    passes = _Passes(tensor.element_size())
    shape = list(tensor.shape)
    shape[dims[-1]] = last
    result = passes.empty(shape, passes.complex_bytes // 2)
    if _at_once(dims) or len(dims) == 1:
        copy = passes.empty(tensor.shape, passes.complex_bytes)
        last_dims = dims
    else:
        copy = _transform_complex(passes, _layout(tensor), dims[:-1])
        last_dims = dims[-1:]
    passes.run(copy, result, shape, last_dims, real=False)
    passes.free(copy.allocation)
    return passes.actions(outputs, result)


def _at_once(dims: Sequence[int]) -> bool:
    """``use_optimized_cufft_path``."""
    return len(dims) <= _MAX_DIMENSIONS and list(dims[:2]) != [0, 1]


def _layout(tensor: torch.Tensor) -> _Buffer:
    return _Buffer(list(tensor.shape), list(tensor.stride()))


def _aligned(passes: _Passes, source: _Buffer, last: int, element_bytes: int) -> _Buffer:
    """A copy that starts where a complex number could, with the last transformed dimension innermost."""
    order = [dim for dim in range(len(source.shape)) if dim != last] + [last]
    inner = _contiguous([source.shape[dim] for dim in order])
    copy = passes.empty(source.shape, element_bytes)
    for dim, stride in zip(order, inner, strict=True):
        copy.strides[dim] = stride
    return copy


def _contiguous(shape: Sequence[int]) -> list[int]:
    strides, stride = [], 1
    for extent in reversed(shape):
        strides.append(stride)
        stride *= max(1, extent)
    return strides[::-1]


def _merged_stride(source: _Buffer, batch_dims: Sequence[int]) -> int | None:
    """Return the stride of the batch dimensions as one, or nothing where ``reshape`` has to copy."""
    merged: int | None = None
    expected = 0
    for dim in reversed(batch_dims):
        extent, stride = source.shape[dim], source.strides[dim]
        if extent == 1:
            continue
        if merged is None:
            merged = stride
        elif stride != expected:
            return None
        expected = stride * extent
    return 1 if merged is None else merged


def _embeds(batch: int, batch_stride: int, signal: Sequence[int], strides: Sequence[int]) -> bool:
    """``as_cufft_embed``: each stride is a multiple of the next inner one."""
    if strides[-1] <= 0 or (batch > 1 and batch_stride == 0):
        return False
    last = strides[-1]
    for extent, stride in zip(signal[-2::-1], strides[-2::-1], strict=True):
        if extent == 1:
            continue
        if stride <= 0 or stride % last:
            return False
        last = stride
    return True
