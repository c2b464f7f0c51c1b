"""A trace as text that a person can review: one line an event, in order."""

from __future__ import annotations

from collections.abc import Iterator

from dnnmem_tune.ir.size import Scratch, Size
from dnnmem_tune.ir.trace import MemoryTrace


def print_trace(trace: MemoryTrace) -> str:
    """Return the marks and events of ``trace``.

    An allocation is ``+``, the storage's number, its size as a function of the batch size
    B, what it is for, and who asked; a free is ``-`` and the number.

    Example:
        >>> from dnnmem_tune.ir.size import Polynomial
        >>> from dnnmem_tune.ir.trace import Category, Mark, Operation, Phase, Storage
        >>> trace = MemoryTrace(
        ...     storages=(Storage(Polynomial(4, 64), Category.ACTIVATION, 0),),
        ...     operations=(Operation("aten::addmm", "encoder.0", Phase.FORWARD, 0),),
        ...     events=(0, ~0),
        ...     marks=(Mark("step 0", 2),),
        ... )
        >>> print(print_trace(trace), end="")
        +0 4 + 64 B bytes, activation: aten::addmm in encoder.0, forward
        -0
        === end of step 0

    """
    return "".join(f"{line}\n" for line in _lines(trace))


def print_size(size: Size) -> str:
    """Return a size as a formula in the batch size B.

    Example:
        >>> from dnnmem_tune.ir.size import Polynomial
        >>> print_size(Polynomial(0, 4, 2))
        '4 B + 2 B(B-1)/2'
        >>> print_size(Scratch("reduction", (Polynomial(0, 8), Polynomial(3)), "buffer"))
        'reduction(8 B, 3; buffer)'

    """
    if isinstance(size, Scratch):
        tag = f"; {size.tag}" if size.tag else ""
        return f"{size.rule}({', '.join(print_size(argument) for argument in size.arguments)}{tag})"
    terms = [
        str(size.constant) if size.constant else "",
        f"{size.linear} B" if size.linear else "",
        f"{size.quadratic} B(B-1)/2" if size.quadratic else "",
    ]
    return " + ".join(term for term in terms if term) or "0"


def _lines(trace: MemoryTrace) -> Iterator[str]:
    marks = iter(sorted(trace.marks, key=lambda mark: mark.event))
    mark = next(marks, None)
    for position, code in enumerate(trace.events):
        while mark is not None and mark.event <= position:
            yield f"=== end of {mark.name}"
            mark = next(marks, None)
        yield _allocation(trace, code) if code >= 0 else f"-{~code}"
    while mark is not None:
        yield f"=== end of {mark.name}"
        mark = next(marks, None)


def _allocation(trace: MemoryTrace, index: int) -> str:
    storage = trace.storages[index]
    operation = trace.operations[storage.operation]
    where = f" in {operation.module}" if operation.module else ""
    optional = ", optional" if storage.optional else ""
    return (
        f"+{index} {print_size(storage.size)} bytes, {storage.category.value}{optional}: "
        f"{operation.name}{where}, {operation.phase.value}"
    )
