"""Record every storage that a program allocates on the fake device, and when it dies.

A dispatch mode sees each operator below autograd. A storage that appears in an output for
the first time is an allocation; a weak reference to it tells when the last tensor that
uses it is gone, so that frees come when Python and autograd give the memory back in a
real run. What an operator takes and gives back inside one call is added by its memory plan.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dnnmem_tune.frontends.torch import cuda_runtime, fallback, values
from dnnmem_tune.frontends.torch import intercepts as _intercepts  # noqa: F401 (registers)
from dnnmem_tune.frontends.torch import plans as _plans  # noqa: F401 (registers)
from dnnmem_tune.frontends.torch.attribution import Attribution
from dnnmem_tune.frontends.torch.host_reads import HostReads
from dnnmem_tune.frontends.torch.intercepts.registry import INTERCEPTS
from dnnmem_tune.frontends.torch.plans.registry import MEMORY_PLANS, Action, Give, Output, Take
from dnnmem_tune.ir.size import Polynomial, Size
from dnnmem_tune.ir.trace import Category, Coverage, Mark, MemoryTrace, Operation, Phase, Storage
from dnnmem_tune.operators.matmul import cublas_workspace_bytes

_DEVICE_OF = torch.ops.prim.device.default
"""What C++ asks a fake tensor several times for each operator."""

_MATRIX_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        "mm",
        "addmm",
        "_addmm_activation",
        "bmm",
        "baddbmm",
        "addbmm",
        "mv",
        "addmv",
        "dot",
        "vdot",
        "_scaled_mm",
        "_int_mm",
    )
)
"""Operators that ask for a cuBLAS handle."""


class Recorder(TorchDispatchMode):
    """A dispatch mode that writes down allocations and frees on the device ``cuda``."""

    def __init__(self, compute_capability: tuple[int, int]) -> None:
        super().__init__()
        self.compute_capability = compute_capability
        self.attribution = Attribution()
        self.host_reads = HostReads()
        self.operations: list[Operation] = []
        self.events: list[int] = []
        self.marks: list[Mark] = []
        self.notes: list[str] = []
        self.running = False
        self._sizes: list[Size] = []
        self._categories: list[Category | None] = []
        self._operation_of: list[int] = []
        self._optional: list[bool] = []
        self._live: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._cublas_handles: set[bool] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in a trace, so nothing has to be kept from the compiler."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE_OF:
            return args[0].fake_device
        kwargs = kwargs or {}
        intercept = INTERCEPTS.get(func)
        output = func(*args, **kwargs) if intercept is None else intercept(self, func, args, kwargs)
        if self.running:
            self._record(func, args, kwargs, output)
        return output

    def identify(self, tensor: torch.Tensor) -> int | None:
        """Return the index of the storage of ``tensor``, or nothing if it is not on the device."""
        if tensor.layout is not torch.strided:
            return None
        entry = self._live.get(tensor.untyped_storage()._cdata)
        return entry[0] if entry is not None else None

    def made_by(self, tensor: torch.Tensor) -> str | None:
        """Return the name of the operator that allocated the storage of ``tensor``, if it is on the device."""
        index = self.identify(tensor)
        return self.operations[self._operation_of[index]].name if index is not None else None

    def mark(self, name: str) -> None:
        """Note that the part called ``name`` ends here."""
        self.marks.append(Mark(name, len(self.events)))

    def take(self, size: Size, category: Category, *, optional: bool = False) -> int:
        """Record an allocation that no tensor stands for, and return its storage index."""
        index = len(self._sizes)
        self._sizes.append(size)
        self._categories.append(category)
        self._operation_of.append(len(self.operations) - 1)
        self._optional.append(optional)
        self.events.append(index)
        return index

    def give(self, index: int) -> None:
        """Record that storage ``index`` is given back."""
        self.events.append(~index)

    def finish(self) -> MemoryTrace:
        """Return what was recorded."""
        self.running = False
        events = _in_canonical_order(self.events)
        categories = self._settle_categories(events)
        operations = list(self.operations)
        for index, (_category, path) in self.attribution.owners.items():
            operation = self._operation_of[index]
            if path and not operations[operation].module:
                old = operations[operation]
                operations[operation] = Operation(old.name, path, old.phase, old.step)
        return MemoryTrace(
            storages=tuple(
                Storage(size, category, operation, optional)
                for size, category, operation, optional in zip(
                    self._sizes, categories, self._operation_of, self._optional, strict=True
                )
            ),
            operations=tuple(operations),
            events=tuple(events),
            marks=tuple(self.marks),
            coverage=Coverage(
                num_operations=len(operations),
                host_reads=dict(self.host_reads.places),
                bounded=dict(self.host_reads.bounded),
                unknown_operators=self._unknown_operators(),
                notes=tuple(dict.fromkeys([*self.notes, *cuda_runtime.notes])),
            ),
            framework=f"torch {torch.__version__}",
            recorder="fake tensors",
        )

    def _unknown_operators(self) -> dict[str, int]:
        calls = Counter(operation.name.partition(".")[0] for operation in self.operations)
        return {name: calls[name] for name in sorted(fallback.unknown_operators) if name in calls}

    def _record(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        schema_name: str = func._schema.name
        tensors = list(_tensors_of(output))
        if not tensors or values.may_follow(func, tensors[0]):
            values.follow(func, args, kwargs, output)
        if not any(tensor.device.type == "cuda" for tensor in tensors):
            return
        path, phase = self.attribution.where()
        overload: str = func._overloadname
        name = schema_name if overload == "default" else f"{schema_name}.{overload}"
        self.operations.append(Operation(name, path, phase, self.attribution.step))
        plan = MEMORY_PLANS.get(func)
        if plan is not None:
            self._follow_plan(plan(self, args, kwargs, output), tensors)
            return
        for tensor in tensors:
            self._note(tensor)
        if schema_name in _MATRIX_PRODUCTS:
            self.take_cublas_workspace()

    def take_cublas_workspace(self) -> None:
        """Record the workspace of this thread's handle, at its first matrix product in forward or backward."""
        thread = self.attribution.in_backward
        if thread not in self._cublas_handles:
            self._cublas_handles.add(thread)
            nbytes = cublas_workspace_bytes(self.compute_capability)
            self.take(Polynomial(nbytes), Category.WORKSPACE)

    def _follow_plan(self, actions: Iterator[Action], outputs: list[torch.Tensor]) -> None:
        taken: list[int] = []
        for action in actions:
            match action:
                case Output(tensor):
                    self._note(tensor)
                case Take(size, category, optional):
                    taken.append(self.take(size, category, optional=optional))
                case Give(number):
                    self.give(taken[number])
                    taken[number] = -1
        for tensor in outputs:
            self._note(tensor)
        for index in reversed(taken):
            if index >= 0:
                self.give(index)

    def _note(self, tensor: torch.Tensor) -> None:
        """Record an allocation if the tensor's storage was not seen before."""
        if tensor.device.type != "cuda" or tensor.layout is not torch.strided:
            return  # a sparse tensor owns no storage; its indices and values are tensors of their own
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return
        index = len(self._sizes)
        self._sizes.append(Polynomial(storage.nbytes()))
        self._categories.append(None)
        self._operation_of.append(len(self.operations) - 1)
        self._optional.append(False)
        self.events.append(index)
        self._live[key] = (index, weakref.ref(storage, self._forget(key, index)))

    def _forget(self, key: int, index: int) -> Callable[[Any], None]:
        def storage_died(_reference: Any) -> None:
            entry = self._live.get(key)
            if entry is not None and entry[0] == index:
                del self._live[key]
            if self.running:
                self.events.append(~index)

        return storage_died

    def _settle_categories(self, events: list[int]) -> list[Category]:
        """What nobody owns is told apart by when it was made and whether its step outlived it."""
        died = {~code: position for position, code in enumerate(events) if code < 0}
        owners = self.attribution.owners
        backward_start = self._backward_starts(events)
        settled: list[Category] = []
        born = {code: position for position, code in enumerate(events) if code >= 0}
        for index, category in enumerate(self._categories):
            operation = self.operations[self._operation_of[index]]
            if index in owners:
                category = owners[index][0]
            elif category is None:
                end = died.get(index, len(events))
                saved = end > backward_start(born[index])
                category = _category_by_lifetime(operation, saved=saved)
            settled.append(category)
        return settled

    def _backward_starts(self, events: list[int]) -> Callable[[int], int]:
        """Return a function: position -> where the next backward pass starts."""
        nexts = [len(events)] * (len(events) + 1)
        for position in range(len(events) - 1, -1, -1):
            code = events[position]
            backward = code >= 0 and self.operations[self._operation_of[code]].phase is Phase.BACKWARD
            nexts[position] = position if backward else nexts[position + 1]
        return nexts.__getitem__


def _category_by_lifetime(operation: Operation, *, saved: bool) -> Category:
    match operation.phase:
        case Phase.BUILD:
            return Category.BUFFER
        case Phase.BACKWARD:
            return Category.OUTPUT_GRADIENT
        case Phase.OPTIMIZER:
            return Category.TEMPORARY
        case Phase.FORWARD:
            name = operation.name.partition(".")[0]
            if not operation.module and name in _INPUT_OPERATORS:
                return Category.INPUT
            if not operation.module and name == "aten::ones_like":
                return Category.OUTPUT_GRADIENT  # where a backward pass starts
            return Category.ACTIVATION if saved else Category.TEMPORARY


_INPUT_OPERATORS = frozenset(
    f"aten::{name}"
    for name in (
        "_to_copy",
        "rand",
        "randn",
        "randint",
        "randperm",
        "zeros",
        "ones",
        "full",
        "empty",
        "arange",
        "lift_fresh",
    )
)
"""How a batch gets to the device: a copy, or a synthetic batch made there."""


def _tensors_of(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, (tuple, list)):
        for item in output:
            yield from _tensors_of(item)


def _in_canonical_order(events: Iterable[int]) -> list[int]:
    """Sort each run of consecutive frees.

    Leaving autocast frees its weight casts in hash order, and an allocator's state after a
    run of frees does not depend on their order.
    """
    ordered: list[int] = []
    run: list[int] = []
    for code in events:
        if code < 0:
            run.append(code)
            continue
        if run:
            ordered += sorted(run, reverse=True)
            run.clear()
        ordered.append(code)
    return ordered + sorted(run, reverse=True)
