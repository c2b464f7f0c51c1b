"""An ONNX model through the library and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("onnx")

from typer.testing import CliRunner

from dnnmem_tune import MemoryGuard
from dnnmem_tune.api import EstimationSession, estimate, max_batch_size
from dnnmem_tune.cli.main import make_app
from dnnmem_tune.decisions.verdict import VerdictState
from dnnmem_tune.errors import UsageError
from tests.onnx_models import LIGHT, perceptron, save

RESNET = str(LIGHT / "light_resnet50.onnx")


def test_a_path_that_ends_in_onnx_is_estimated_as_inference(tmp_path: Path) -> None:
    """No framework needs to be named; the arena is ONNX Runtime's."""
    answer = estimate(str(save(perceptron(), tmp_path)), batch_size=4, gpu="T4")

    assert answer.fits
    assert answer.provenance.allocator == "ONNX Runtime arena"


def test_the_largest_batch_for_inference_is_the_last_that_fits() -> None:
    """One more does not."""
    with EstimationSession(RESNET) as session:
        result = session.max_batch_size("T4")
        assert result.largest_batch is not None
        assert session.estimate(result.largest_batch, "T4").fits
        assert session.estimate(result.largest_batch + 1, "T4").fits is False


def test_growing_as_requested_takes_less_than_doubling() -> None:
    """The second strategy of the arena, and a limit on it."""
    doubled = estimate(RESNET, batch_size=32, gpu="T4")
    asked = estimate(RESNET, batch_size=32, gpu="T4", alloc_conf="arena_extend_strategy:kSameAsRequested")
    limited = estimate(RESNET, batch_size=32, gpu="T4", alloc_conf="gpu_mem_limit:256MiB")

    assert asked.peak_reserved_bytes < doubled.peak_reserved_bytes
    assert limited.fits is False


def test_training_needs_more_than_inference_and_adam_more_than_sgd() -> None:
    """In each target framework's own allocator."""
    inference = estimate(RESNET, batch_size=8, gpu="T4")
    sgd = estimate(RESNET, batch_size=8, gpu="T4", framework="onnx:pytorch")
    adam = estimate(RESNET, batch_size=8, gpu="T4", framework="onnx:pytorch", params={"optimizer": "adam"})

    assert inference.peak_requested_bytes < sgd.peak_requested_bytes < adam.peak_requested_bytes


def test_resnet50_trains_as_the_same_nodes_do_in_pytorch() -> None:
    """Batch 16 in PyTorch 2.13: 1454.0 MiB requested, 1468.8 allocated, 1704.0 reserved."""
    answer = estimate(RESNET, batch_size=16, gpu="80GiB", framework="onnx:pytorch")

    assert answer.peak_requested_bytes / 2**20 == pytest.approx(1454.0, rel=0.01)
    assert answer.peak_allocated_bytes / 2**20 == pytest.approx(1468.8, rel=0.01)
    assert answer.peak_reserved_bytes / 2**20 == pytest.approx(1704.0, rel=0.05)


@pytest.mark.parametrize(
    ("target", "allocator"),
    [("pytorch", "PyTorch caching allocator"), ("tensorflow", "BFC"), ("ort", "ONNX Runtime arena")],
)
def test_training_meets_the_allocator_of_its_framework(target: str, allocator: str) -> None:
    """Which the report names."""
    answer = estimate(RESNET, batch_size=2, gpu="T4", framework=f"onnx:{target}")

    assert answer.fits
    assert allocator in answer.provenance.allocator


def test_a_hyperparameter_may_be_a_dimension(tmp_path: Path) -> None:
    """So that a search can vary it, or look for its largest value."""
    model = perceptron()
    model.graph.input[0].type.tensor_type.shape.dim.insert(
        1, type(model.graph.input[0].type.tensor_type.shape.dim[0])(dim_param="rows")
    )
    for node in model.graph.node:
        if node.op_type == "Gemm":
            node.op_type = "MatMul"
            del node.input[2:]
    path = str(save(model, tmp_path))

    few = estimate(path, batch_size=4, gpu="T4", params={"rows": 1000})
    many = estimate(path, batch_size=4, gpu="T4", params={"dims": {"rows": 100_000}})
    largest = max_batch_size(path, gpu="T4", searched="rows", batch_size=4)

    assert few.peak_requested_bytes < many.peak_requested_bytes
    assert largest.largest_batch is not None


def test_training_as_an_unknown_framework_is_refused() -> None:
    """With those that there are."""
    with pytest.raises(UsageError, match=r"^an ONNX model is trained as pytorch, tensorflow or ort, got 'jax'$"):
        estimate(RESNET, batch_size=8, gpu="T4", framework="onnx:jax")


def test_the_command_line_takes_dimensions_and_a_target(tmp_path: Path) -> None:
    """``--dim`` and ``--as``, and JSON as for every workload."""
    path = str(save(perceptron(), tmp_path))

    run = CliRunner().invoke(
        make_app(),
        [
            "estimate",
            "--model",
            path,
            "--gpu",
            "T4",
            "--batch",
            "4",
            "--dim",
            "batch=4",
            "--as",
            "pytorch",
            "--json",
        ],
    )

    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["fits"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dim", "s=1", "--dim", "s=2"], "dimension s is given twice: 1 and 2"),
        (["--dim", "s"], "--dim 's' has no extent; write --dim NAME=N, such as --dim sequence=128"),
        (["--dim", "rows=3"], "'rows' is no dimension of the model (it has batch)"),
        (["--as", "jax"], "an ONNX model is trained as pytorch, tensorflow or ort, got 'jax'"),
    ],
)
def test_options_that_cannot_be_meant_end_with_one_line(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    """Exit code 2, and no traceback."""
    path = str(save(perceptron(), tmp_path))

    run = CliRunner().invoke(make_app(), ["estimate", "--model", path, "--gpu", "T4", "--batch", "4", *arguments])

    assert run.exit_code == 2
    assert run.stderr.strip() == f"dnnmem: {message}"


def test_dimensions_are_for_model_files() -> None:
    """A built-in workload has hyperparameters."""
    run = CliRunner().invoke(
        make_app(), ["estimate", "--model", "resnet50", "--gpu", "T4", "--batch", "4", "--dim", "s=1"]
    )

    assert run.exit_code == 2
    assert "--dim is for ONNX models; write --set NAME=VALUE" in run.stderr


def test_the_guard_takes_a_model_file() -> None:
    """Batch sizes beyond the largest are refused before anything runs."""
    with MemoryGuard(RESNET, gpu="T4", framework="onnx:pytorch") as guard:
        assert guard.check({"batch_size": 16}).state is VerdictState.FITS
        assert guard.check({"batch_size": 4096, "optimizer": "adam"}).state is VerdictState.EXCEEDS
