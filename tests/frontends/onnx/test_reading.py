"""What is no model, or cannot be read within bounds, is refused in one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto

from dnnmem_tune.errors import DnnMemError, TraceError, UnsupportedError, UsageError, WorkloadError
from dnnmem_tune.frontends.onnx.reading import missing_external_files, read_model
from tests.onnx_models import perceptron, save

LIMIT = 8 << 30


def test_a_model_is_read_without_its_external_weights(tmp_path: Path) -> None:
    """Sizes are in the model; the file with the weights may be gigabytes, or not be there."""
    model = perceptron()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")

    read = read_model(save(model, tmp_path), memory_limit=LIMIT)

    assert list(read.graph.initializer[0].dims) == [8, 16]
    assert missing_external_files(read, tmp_path) == ["weights.bin"]


def text_file(folder: Path) -> Path:
    """Return a file of words."""
    path = folder / "model.onnx"
    path.write_text("this is no model", encoding="utf-8")
    return path


def empty_file(folder: Path) -> Path:
    """Return a file without a byte."""
    path = folder / "model.onnx"
    path.touch()
    return path


def truncated(folder: Path) -> Path:
    """Return a model whose end is missing."""
    path = save(perceptron(), folder)
    path.write_bytes(path.read_bytes()[:-40])
    return path


def future(folder: Path) -> Path:
    """Return a model of an opset that does not exist yet."""
    model = perceptron()
    model.opset_import[0].version = 999
    return save(model, folder)


def huge(folder: Path) -> Path:
    """A sparse file: two gibibytes long, and next to none on the disk."""
    path = folder / "model.onnx"
    with path.open("wb") as stream:
        os.truncate(stream.fileno(), 2 << 30)
    return path


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (text_file, WorkloadError, "is not an ONNX model"),
        (empty_file, WorkloadError, "is not an ONNX model: it has no graph with a node in it"),
        (truncated, WorkloadError, "is not an ONNX model, or only part of one: it cannot be parsed"),
        (future, UnsupportedError, f"uses opset 999; onnx {onnx.__version__} knows opsets up to"),
        (huge, WorkloadError, "has 2.00 GiB, and a protobuf file holds less than 2 GiB"),
        (lambda folder: folder / "gone.onnx", UsageError, "cannot be read: No such file or directory"),
        (lambda folder: folder, UsageError, "cannot be read: it is a folder"),
    ],
)
def test_bad_files_are_refused(make: Any, error: type[DnnMemError], message: str, tmp_path: Path) -> None:
    """With the path, what is wrong, and in one line."""
    with pytest.raises(error) as caught:
        read_model(make(tmp_path), memory_limit=LIMIT)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_would_take_too_much_host_memory_is_not_read(tmp_path: Path) -> None:
    """The limit is the caller's, as for every front-end."""
    path = save(perceptron(), tmp_path)

    with pytest.raises(TraceError, match="of host memory, the limit is 100 B; raise it"):
        read_model(path, memory_limit=100)


def test_a_damaged_name_is_refused(tmp_path: Path) -> None:
    """Protobuf hands out bytes where a text is no UTF-8, and nothing can be done with them."""
    path = save(perceptron(), tmp_path)
    path.write_bytes(path.read_bytes().replace(b"/first/Relu", b"/first/\xff\xfe\xfdu"))

    with pytest.raises(WorkloadError, match=r"is damaged: the name b'/first/.*' in it is no text$"):
        read_model(path, memory_limit=LIMIT)
