"""Read a model file without its external weights, and refuse what is no model, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dnnmem_tune.errors import MissingPackageError, TraceError, UnsupportedError, UsageError, WorkloadError
from dnnmem_tune.units import format_bytes

_PROTOBUF_LIMIT = 1 << 31
"""Bytes; a protobuf message is shorter. Source: protobuf's documentation, "Proto Limits"."""

_PARSED_PER_BYTE = 3
"""Host memory while parsing, for each byte of a file: the text, the message, and slack of the heap."""


def import_onnx() -> Any:
    """Return the package ``onnx``.

    Raises:
        MissingPackageError: If it is not installed.

    """
    try:
        import onnx
    except ImportError as error:
        raise MissingPackageError(
            "the ONNX front-end needs the package 'onnx', which is not installed; "
            'run pip install "dnnmem-tune[onnx]"'
        ) from error
    return onnx


def read_model(path: Path, *, memory_limit: int) -> Any:
    """Return the ``ModelProto`` in a file; weights stored outside the file are not read.

    Args:
        path: The file.
        memory_limit: Host memory in bytes that reading may take.

    Raises:
        MissingPackageError: If ``onnx`` is not installed.
        UsageError: If the file cannot be read.
        WorkloadError: If it holds no model.
        TraceError: If reading it would take more memory than allowed.
        UnsupportedError: If it is written for a later release of ONNX.

    """
    onnx = import_onnx()
    from google.protobuf.message import DecodeError

    try:
        nbytes = path.stat().st_size
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        if nbytes >= _PROTOBUF_LIMIT:
            raise WorkloadError(
                f"{path} has {format_bytes(nbytes)}, and a protobuf file holds less than 2 GiB; "
                "save the model with its weights as external data"
            )
        if (needed := _PARSED_PER_BYTE * nbytes) > memory_limit:
            raise TraceError(
                f"reading {path} takes about {format_bytes(needed)} of host memory, the limit is "
                f"{format_bytes(memory_limit)}; raise it, or save the weights as external data"
            )
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"the model {str(path)!r} cannot be read: {error.strerror}") from error
    try:
        model = onnx.ModelProto.FromString(content)
    except (DecodeError, RuntimeError) as error:
        raise WorkloadError(f"{path} is not an ONNX model, or only part of one: it cannot be parsed") from error
    if not model.ir_version or not model.graph.node:
        raise WorkloadError(f"{path} is not an ONNX model: it has no graph with a node in it")
    for name in (
        *_names(model.graph),
        *(name for function in model.functions for name in _node_names(function.node)),
    ):
        # Where a text is no UTF-8, protobuf hands out the bytes.
        if not isinstance(name, str):
            raise WorkloadError(f"{path} is damaged: the name {name!r} in it is no text")
    for opset in model.opset_import:
        newest = onnx.defs.onnx_opset_version()
        if opset.domain in ("", "ai.onnx") and opset.version > newest:
            raise UnsupportedError(
                f"{path} uses opset {opset.version}; onnx {onnx.__version__} knows opsets up to {newest}: "
                "install a later release of onnx"
            )
    return model


def _names(graph: Any) -> Iterator[Any]:
    """Yield every name in a graph and in the bodies of its nodes."""
    for entry in (*graph.input, *graph.output, *graph.initializer):
        yield entry.name
    for value in graph.input:
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    yield from _node_names(graph.node)


def _node_names(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            if attribute.HasField("g"):
                yield from _names(attribute.g)


def missing_external_files(model: Any, folder: Path) -> list[str]:
    """Return the names of files with weights that are not where the model says; sizes are known without them."""
    onnx = import_onnx()
    names = {
        entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return sorted(name for name in names if not (folder / name).is_file())
