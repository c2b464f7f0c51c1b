"""Which dimensions of a model's inputs have no value yet, and which one is the batch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dnnmem_tune.errors import UsageError, WorkloadError

_BATCH_NAMES = ("batch", "batch_size", "batchsize", "n", "b", "bs", "num_batch", "batch_dim")


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The dimensions of the inputs: numbers, and names for what the file leaves open.

    A dimension without a name of its own is called after its place: ``image.2`` is the third axis of ``image``.
    """

    inputs: Mapping[str, tuple[int | str, ...]]
    """Name of an input -> its axes."""

    batch: str
    """Name of the batch dimension."""

    fixed_batch: int | None
    """The batch size that the file was exported for; None where it leaves the batch open."""

    def names(self) -> list[str]:
        """Return the names, in order of appearance."""
        axes = (axis for shape in self.inputs.values() for axis in shape if isinstance(axis, str))
        return list(dict.fromkeys(axes))

    def bind(self, batch_size: int, given: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each input.

        Args:
            batch_size: At least 1.
            given: Name of a dimension -> its extent.

        Raises:
            UsageError: If a name is no dimension of the model, an extent is not at least 1, the
                batch is given another size, or a dimension has no value.

        """
        names = self.names()
        for name, extent in given.items():
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise UsageError(
                    f"{name!r} is no dimension of the model{hint} (it has {', '.join(names) or 'none to choose'})"
                )
            if isinstance(extent, bool) or not isinstance(extent, int) or extent < 1:
                raise UsageError(f"dimension {name} must be a whole number of at least 1, got {extent!r}")
        if given.get(self.batch, batch_size) != batch_size:
            raise UsageError(
                f"dimension {self.batch} is the batch: it is {given[self.batch]} by --dim and {batch_size} as the "
                "batch size; give one, or name another batch dimension"
            )
        extents = {**given, self.batch: batch_size}
        missing = [name for name in names if name not in extents]
        if missing:
            wanted = " ".join(f"--dim {name}=128" for name in missing)
            raise UsageError(f"the model leaves {', '.join(missing)} open; give each a value, such as {wanted}")
        return {
            name: tuple(extents[axis] if isinstance(axis, str) else axis for axis in shape)
            for name, shape in self.inputs.items()
        }


def read_dimensions(model: Any, batch_dim: str | None = None) -> Dimensions:
    """Return the dimensions of a model's inputs.

    Args:
        model: A ``ModelProto``.
        batch_dim: Name of the batch dimension. By default that with a usual name (``batch``, ``N``), else the
            first axis of the first input; where that is a number, it is made open in every input that has it.

    Raises:
        UsageError: If ``batch_dim`` is no dimension.
        WorkloadError: If an input has no shape.

    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs: dict[str, tuple[int | str, ...]] = {}
    for value in model.graph.input:
        if value.name in weights or not value.type.HasField("tensor_type"):
            continue
        if not value.type.tensor_type.HasField("shape"):
            raise WorkloadError(f"input {value.name!r} of the model has no shape; export it with one")
        inputs[value.name] = tuple(
            _axis(value.name, index, dim) for index, dim in enumerate(value.type.tensor_type.shape.dim)
        )
    if not any(inputs.values()):
        return Dimensions(inputs, batch_dim or "batch", None)
    names = [axis for shape in inputs.values() for axis in shape if isinstance(axis, str)]
    if batch_dim is not None:
        if batch_dim not in names:
            known = ", ".join(dict.fromkeys(names)) or "none"
            raise UsageError(f"{batch_dim!r} is no open dimension of the model; it has {known}")
        return Dimensions(inputs, batch_dim, None)
    named = [name for name in names if name.lower() in _BATCH_NAMES]
    first = next(shape[0] for shape in inputs.values() if shape)
    if named or isinstance(first, str):
        return Dimensions(inputs, named[0] if named else str(first), None)
    # A vector of shape (1,) is an option of the network, such as a sampling rate, and no batch.
    longest = max(len(shape) for shape in inputs.values())
    opened = {
        name: ("batch", *shape[1:]) if shape and shape[0] == first and len(shape) > min(1, longest - 1) else shape
        for name, shape in inputs.items()
    }
    return Dimensions(opened, "batch", first)


def _axis(name: str, index: int, dim: Any) -> int | str:
    if dim.HasField("dim_value") and dim.dim_value > 0:
        return int(dim.dim_value)
    # Exporters write 0 or -1 for an open dimension too, and the question mark for each of several.
    return str(dim.dim_param) if dim.dim_param not in ("", "?") else f"{name}.{index}"
