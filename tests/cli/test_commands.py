"""Each command on a job whose memory is known by hand: what it prints, and its exit code.

The fake job holds 100 MiB of weights and 20 MiB for each sample. A card of 1 GiB and compute
capability 8.0 has a context of its own, so cards are described in a file: 1 GiB, 100 MiB context.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from dnnmem_tune.cli.main import make_app
from dnnmem_tune.errors import TraceError, WorkloadError
from dnnmem_tune.ir.trace import Coverage
from dnnmem_tune.units import GIB, MIB
from tests.builders import FakeWorkload

Serve = Callable[[FakeWorkload], FakeWorkload]

CARD = """
name = "{name}"
total = "{total}"
context = "100 MiB"
compute_capability = "8.0"
sms = 108
"""


@pytest.fixture
def card(tmp_path: Path) -> str:
    """Return the file of a card of 1 GiB."""
    path = tmp_path / "card.toml"
    path.write_text(CARD.format(name="small", total="1 GiB"))
    return str(path)


@pytest.fixture
def large_card(tmp_path: Path) -> str:
    """Return the file of a card of 4 GiB."""
    path = tmp_path / "large.toml"
    path.write_text(CARD.format(name="large", total="4 GiB"))
    return str(path)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)


class Answer:
    """What a command left behind."""

    def __init__(self, *arguments: str, app: typer.Typer | None = None) -> None:
        result = CliRunner().invoke(app or make_app(), list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr

    def json(self) -> dict[str, Any]:
        """Return standard output, which must be JSON and nothing else."""
        document: dict[str, Any] = json.loads(self.out)
        return document


def test_estimate_prints_four_peaks_with_their_metric(serve: Serve, card: str) -> None:
    """A number without its metric cannot be compared with anything."""
    serve(FakeWorkload())

    answer = Answer("estimate", "--gpu", card, "--model", "resnet50", "--batch", "4")

    assert answer.code == 0
    assert "Batch 4 fits: needs 280.0 MiB of device memory, 744.0 MiB below the limit of 1.00 GiB." in answer.out
    lines = [" ".join(line.split()) for line in answer.out.splitlines()]
    for line in (
        "requested 180.0 MiB what PyTorch asks its allocator for",
        "allocated 180.0 MiB in blocks handed out: torch.cuda.max_memory_allocated",
        "reserved 180.0 MiB held by the allocator: torch.cuda.max_memory_reserved",
        "device 280.0 MiB reserved and the CUDA context: what nvidia-smi shows",
        "weight 100.0 MiB 35.7 %",
        "activation 80.0 MiB 28.6 %",
    ):
        assert line in lines
    assert answer.err == ""


def test_estimate_as_json_holds_the_documented_keys(serve: Serve, card: str) -> None:
    """Scripts read these."""
    serve(FakeWorkload())

    document = Answer("estimate", "--gpu", card, "--model", "resnet50", "--batch", "4", "--json").json()

    assert document["kind"] == "estimate"
    assert document["fits"] is True
    assert document["limit_bytes"] == GIB
    assert document["peaks"] == {
        "requested_bytes": 180 * MIB,
        "allocated_bytes": 180 * MIB,
        "reserved_bytes": 180 * MIB,
        "device_bytes": 280 * MIB,
    }
    assert document["breakdown"]["categories"] == {"weight": 100 * MIB, "activation": 80 * MIB}
    assert document["provenance"]["recorder"] == "a fake"


def test_estimate_that_does_not_fit_ends_in_three_and_says_what_would_help(serve: Serve, card: str) -> None:
    """The number of the exit code is part of the interface."""
    serve(FakeWorkload(accepts=("checkpointing",), scale=lambda params: 0.5 if params else 1.0))

    answer = Answer("estimate", "--gpu", card, "--model", "resnet50", "--batch", "60")

    assert answer.code == 3
    assert "Batch 60 does not fit: would take 1.37 GiB of device memory" in answer.out
    assert "What would help batch 60 (each estimated)" in answer.out
    assert "activation checkpointing (checkpointing=True)" in answer.out


def test_estimate_that_cannot_be_judged_is_a_failure_and_no_verdict(serve: Serve, card: str) -> None:
    """Unknown is neither 0 nor 3."""
    serve(FakeWorkload(coverage=Coverage(unknown_operators={"aten::foo": 1})))

    answer = Answer("estimate", "--gpu", card, "--model", "resnet50", "--batch", "4")

    assert answer.code == 1
    assert "Batch 4 is not known to fit" in answer.out
    assert "There is no memory rule for aten::foo" in answer.out


def test_maxbatch_names_the_answer_and_the_reason(serve: Serve, card: str) -> None:
    """By hand: 100 + 41 x 20 = 920 of 924 MiB."""
    serve(FakeWorkload())

    answer = Answer("maxbatch", "--gpu", card, "--model", "resnet50")

    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[:3] == [
        "resnet50 on small (1.00 GiB, compute capability 8.0)",
        "Largest batch that fits: 41",
        "First that does not fit: 42",
    ]
    assert lines[3].startswith("Why: batch 42 would take 1.02 GiB of device memory if there were room, 16.0 MiB")


def test_maxbatch_as_json_holds_the_documented_keys(serve: Serve, card: str) -> None:
    """Scripts read these."""
    serve(FakeWorkload())

    document = Answer("maxbatch", "--gpu", card, "--model", "resnet50", "--json").json()

    assert (document["largest_batch"], document["first_too_large"]) == (41, 42)
    assert document["limit_bytes"] == GIB
    assert document["headroom_bytes"] == 4 * MIB
    assert document["peaks"]["device_bytes"] == 1020 * MIB
    assert document["monotone"] is True
    assert {probe["verdict"] for probe in document["probes"]} == {"fits", "exceeds"}


def test_maxbatch_alone_is_the_same_command(serve: Serve, card: str) -> None:
    """``dnnmem-maxbatch`` takes the same options."""
    from dnnmem_tune.cli.main import make_maxbatch_app

    serve(FakeWorkload())

    answer = Answer("--gpu", card, "--model", "resnet50", "--multiple-of", "8", app=make_maxbatch_app())

    assert "Largest batch that fits: 40" in answer.out
    assert "First that does not fit: 48" in answer.out


def test_maxbatch_where_none_fits_ends_in_three_and_names_a_card(serve: Serve, card: str) -> None:
    """With 2 GiB of weights even one sample needs another card, which is looked for in the catalogue."""
    serve(FakeWorkload(weight_bytes=2 * GIB))

    answer = Answer("maxbatch", "--gpu", card, "--model", "resnet50")

    assert answer.code == 3
    assert "No batch is known to fit: even batch 1 would take 2.12 GiB" in answer.out
    assert "is the smallest of the catalogue that fits" in answer.out


def test_maxbatch_without_advice_estimates_nothing_else(serve: Serve, card: str) -> None:
    """A script wants the verdict only."""
    fake = serve(FakeWorkload(weight_bytes=2 * GIB))

    answer = Answer("maxbatch", "--gpu", card, "--model", "resnet50", "--no-advice")

    assert answer.code == 3
    assert "would help" not in answer.out
    assert all(request.params == {} for request in fake.requests)


def test_maxbatch_with_a_target_gives_the_accumulation(serve: Serve, card: str) -> None:
    """Largest divisor of 128 that fits: 32."""
    serve(FakeWorkload())

    answer = Answer("maxbatch", "--gpu", card, "--workload", "train.py:build", "--target-batch", "128")

    assert "For batch 128: micro-batch 32 x 4 accumulation steps = 128." in answer.out
    assert "Note: the micro-batch was estimated without accumulation." in answer.out


def test_maxbatch_for_another_hyperparameter(serve: Serve, card: str) -> None:
    """At batch 2, 824 / 40 = 20.6."""
    serve(FakeWorkload(accepts=("width",), scale=lambda params: params.get("width", 1)))
    arguments = ("maxbatch", "--gpu", card, "--workload", "train.py:build", "--for", "width", "--batch", "2")

    answer, document = Answer(*arguments), Answer(*arguments, "--json").json()

    assert "Largest width at batch 2 that fits: 20" in answer.out
    assert (document["searched"], document["batch_size"], document["largest_batch"]) == ("width", 2, 20)


def test_maxbatch_says_which_is_the_smallest_that_runs(serve: Serve, card: str) -> None:
    """Batch norm over one value."""
    serve(FakeWorkload(runs=lambda batch_size, _params: batch_size > 1))

    answer = Answer("maxbatch", "--gpu", card, "--model", "resnet50")

    assert "Smallest batch that runs: 2 (at 1: train.py:7: ValueError: cannot run at batch 1)" in answer.out


def test_compare_names_the_smallest_card(serve: Serve, card: str, large_card: str) -> None:
    """At batch 60 the card of 1 GiB is too small."""
    serve(FakeWorkload())
    arguments = ("compare", "--gpu", large_card, "--gpu", card, "--model", "resnet50", "--batch", "60")

    answer, document = Answer(*arguments), Answer(*arguments, "--json").json()

    assert answer.code == 0
    assert "Smallest card that fits: large" in answer.out
    assert document["smallest_gpu"] == "large"
    assert [(row["gpu"]["name"], row["fits"]) for row in document["gpus"]] == [("small", False), ("large", True)]


def test_compare_without_a_batch_shows_the_largest_of_each(serve: Serve, card: str, large_card: str) -> None:
    """4 GiB: (4096 - 100 - 100) / 20 = 194.8."""
    serve(FakeWorkload())

    document = Answer("compare", "--gpu", card, "--gpu", large_card, "--model", "resnet50", "--json").json()

    assert [row["largest_batch"] for row in document["gpus"]] == [41, 194]


def test_compare_where_no_card_fits_ends_in_three(serve: Serve, card: str) -> None:
    """As every command does that has a verdict."""
    serve(FakeWorkload())

    answer = Answer("compare", "--gpu", card, "--model", "resnet50", "--batch", "60")

    assert answer.code == 3
    assert "None of these cards is known to fit it." in answer.out


def test_gpus_lists_the_catalogue() -> None:
    """With the memory that CUDA reports, which is less than the name says."""
    answer, document = Answer("gpus", "v100"), Answer("gpus", "--json").json()

    assert "V100-16GB" in answer.out
    assert "15.78 GiB" in answer.out
    assert "A100" not in answer.out
    assert len(document["gpus"]) >= 45


def test_allocator_is_configured_by_the_environment_and_it_is_said(
    serve: Serve, card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job will run in this environment, so its allocator is simulated; an option goes first."""
    serve(FakeWorkload())
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    arguments = ("estimate", "--gpu", card, "--model", "resnet50", "--batch", "4")

    answer = Answer(*arguments)
    by_option = Answer(*arguments, "--alloc-conf", "max_split_size_mb:128")

    assert (
        "The allocator is configured by the environment variable PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True"
        in answer.out
    )
    assert "The allocator is configured by --alloc-conf: max_split_size_mb:128" in by_option.out


def test_hyperparameters_are_read_as_python_writes_them(serve: Serve, card: str) -> None:
    """And a word that is no literal is a string."""
    names = ("width", "rate", "sizes", "act", "flag", "none", "image_size", "precision")
    fake = serve(FakeWorkload(accepts=names))

    settings = ["width=512", "rate=1e-3", "sizes=[1, 2]", "act=relu", "flag=true", "none=None"]
    options = [part for setting in settings for part in ("--set", setting)]
    answer = Answer(
        "estimate", "--gpu", card, "--model", "resnet50", "--batch", "1", *options, "--input-size", "96",
        "--precision", "bf16",
    )  # fmt: skip

    assert answer.code == 0
    assert fake.requests[0].params == {
        "precision": "bf16",
        "image_size": 96,
        "width": 512,
        "rate": 0.001,
        "sizes": [1, 2],
        "act": "relu",
        "flag": True,
        "none": None,
    }


@pytest.mark.parametrize(
    ("model", "name"), [("gpt2", "seq_len"), ("BERT_base", "seq_len"), ("mlp", "in_features")]
)
def test_input_size_is_what_the_model_calls_it(serve: Serve, card: str, model: str, name: str) -> None:
    """Nobody remembers which model calls it what."""
    fake = serve(FakeWorkload(accepts=(name,)))

    Answer("estimate", "--gpu", card, "--model", model, "--batch", "1", "--input-size", "64")

    assert fake.requests[0].params == {name: 64}


def test_limits_and_cache_reach_the_front_end(serve: Serve, card: str, tmp_path: Path) -> None:
    """Sizes are parsed, and a cache folder implies a cache."""
    fake = serve(FakeWorkload())

    Answer(
        "estimate", "--gpu", card, "--model", "resnet50", "--batch", "1", "--time-limit", "30",
        "--memory-limit", "2GiB", "--cache-dir", str(tmp_path), "--recorder", "fake",
    )  # fmt: skip

    tracing = fake.tracings[0]
    assert (tracing.time_limit, tracing.memory_limit, tracing.recorder) == (30, 2 * GIB, "fake")
    assert tracing.cache_dir == tmp_path


def test_cache_of_the_user_is_in_the_cache_folder(
    serve: Serve, card: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system keeps such things."""
    fake = serve(FakeWorkload())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    Answer("estimate", "--gpu", card, "--model", "resnet50", "--batch", "1", "--cache")
    Answer("estimate", "--gpu", card, "--model", "resnet50", "--batch", "1")

    assert [tracing.cache_dir for tracing in fake.tracings] == [tmp_path / "dnnmem_tune" / "traces", None]


def test_snapshot_is_what_memory_viz_reads(serve: Serve, card: str, tmp_path: Path) -> None:
    """Weights, then one activation in each of two steps: three allocations and two frees."""
    serve(FakeWorkload())
    path = tmp_path / "run.pickle"

    answer = Answer("estimate", "--gpu", card, "--model", "resnet50", "--batch", "4", "--snapshot", str(path))

    document = pickle.loads(path.read_bytes())
    actions = [entry["action"] for entry in document["device_traces"][0]]
    assert (actions.count("alloc"), actions.count("free_completed")) == (3, 2)
    assert f"The snapshot is in {path}; drop it on https://pytorch.org/memory_viz" in answer.out


def test_snapshot_that_cannot_be_written_is_one_line(serve: Serve, card: str, tmp_path: Path) -> None:
    """A folder is no file."""
    serve(FakeWorkload())

    answer = Answer("estimate", "--gpu", card, "--model", "resnet50", "--batch", "4", "--snapshot", str(tmp_path))

    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"dnnmem: the snapshot {tmp_path} cannot be written (Is a directory); name another file\n"


ESTIMATE = ("estimate", "--gpu", "V100-16GB", "--model", "resnet50")
MAXBATCH = ("maxbatch", "--gpu", "V100-16GB", "--model", "resnet50")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*ESTIMATE, "--batch", "0"), "batch_size must be a whole number of at least 1, got 0"),
        ((*ESTIMATE, "--batch", "-1"), "batch_size must be a whole number of at least 1, got -1"),
        ((*ESTIMATE, "--batch", "1000000000000"), "batch_size must be at most 2147483647, got 1000000000000"),
        (ESTIMATE, "no batch size is given; pass --batch 32, or find the largest with dnnmem maxbatch"),
        (
            ("estimate", "--model", "resnet50", "--batch", "1"),
            "no GPU is given; pass one such as --gpu V100-16GB or --gpu 24GiB (dnnmem gpus lists them)",
        ),
        (
            ("estimate", "--gpu", "V100-16GB", "--batch", "1"),
            "no workload is given; name a built-in one (--model resnet50) or your own (--workload train.py:build)",
        ),
        (
            (*ESTIMATE, "--batch", "1", "--workload", "train.py"),
            "--model and --workload name two workloads; give one",
        ),
        (
            (*ESTIMATE, "--batch", "1", "--set", "width"),
            "--set 'width' has no value; write --set NAME=VALUE, such as --set width=512",
        ),
        ((*ESTIMATE, "--batch", "1", "--set", "a=1", "--set", "a=2"), "a is given twice"),
        ((*ESTIMATE, "--batch", "1", "--set", "a=1e999"), "params['a'] is inf; pass a finite number"),
        (
            ("estimate", "--gpu", "V100-16GB", "--workload", "t.py", "--batch", "1", "--precision", "fp16"),
            "--precision is for built-in models (--model); for your own workload write --set",
        ),
        (
            (*ESTIMATE, "--batch", "1", "--conv-workspace", "big"),
            "conv_workspace must be one of none, limited, benchmark, got 'big'",
        ),
        (
            (*ESTIMATE, "--batch", "1", "--safety", "lots"),
            "a safety margin is a share from 0 to below 1 (0.05 or '5%') or a size such as '512MiB', got 'lots'",
        ),
        (
            (*MAXBATCH, "--min", "8", "--max", "4"),
            "largest batch_size: maximum=4 is below minimum=8; pass maximum >= minimum",
        ),
        ((*MAXBATCH, "--min", "0"), "minimum must be a whole number of at least 1, got 0"),
        ((*MAXBATCH, "--target-batch", "0"), "target_batch must be a whole number of at least 1, got 0"),
        (
            (*MAXBATCH, "--batch", "4"),
            "--batch fixes what is searched; drop it, or search something else with --for NAME",
        ),
        (
            (*MAXBATCH, "--for", "seq_len"),
            "--for seq_len searches at a fixed batch size; pass it as --batch",
        ),
        (
            (*MAXBATCH, "--for", "seq_len", "--batch", "4", "--set", "seq_len=128"),
            "'seq_len' is searched and cannot be fixed at 128 as well; drop one of the two",
        ),
        (
            (*MAXBATCH, "--for", "seq_len", "--batch", "4", "--target-batch", "8"),
            "--target-batch is a wanted batch size; it means nothing with --for",
        ),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_two(serve: Serve, arguments: tuple[str, ...], message: str) -> None:
    """Nothing is traced, and nothing is on standard output."""
    fake = serve(FakeWorkload())

    answer = Answer(*arguments)

    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"dnnmem: {message}\n"
    assert fake.requests == []


def test_unknown_gpu_gets_near_matches(serve: Serve) -> None:
    """A typing mistake is the usual case."""
    serve(FakeWorkload())

    answer = Answer("estimate", "--gpu", "V100-16G", "--model", "resnet50", "--batch", "1")

    assert answer.code == 2
    assert "did you mean V100-16GB" in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*ESTIMATE, "--batch", "1.5"), "Invalid value for '--batch': '1.5' is not a whole number"),
        ((*ESTIMATE, "--batsh", "1"), "No such option"),
        (("estimat",), "No such command 'estimat'"),
    ],
)
def test_what_the_parser_refuses_is_one_line_too(arguments: tuple[str, ...], message: str) -> None:
    """Typer would draw a box."""
    answer = Answer(*arguments)

    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"dnnmem: {message}")
    assert answer.err.endswith(" (see --help)\n")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (WorkloadError("train.py:3: ValueError: no\n  such thing"), "train.py:3: ValueError: no such thing"),
        (TraceError("the step did not end within 5 s"), "the step did not end within 5 s"),
    ],
)
def test_failure_is_one_line_and_exit_code_one(serve: Serve, card: str, failure: Exception, line: str) -> None:
    """Whatever line breaks the message has."""
    serve(FakeWorkload(failure=failure))

    answer = Answer("estimate", "--gpu", card, "--model", "resnet50", "--batch", "1")

    assert (answer.code, answer.out, answer.err) == (1, "", f"dnnmem: {line}\n")


def test_control_c_is_one_line_and_exit_code_130(serve: Serve, card: str) -> None:
    """As a shell expects, and the worker is ended."""
    fake = serve(FakeWorkload(failure=KeyboardInterrupt()))

    answer = Answer("maxbatch", "--gpu", card, "--model", "resnet50")

    assert (answer.code, answer.out, answer.err) == (130, "", "dnnmem: interrupted\n")
    assert fake.closed >= 1


def test_defect_keeps_its_traceback(serve: Serve, card: str) -> None:
    """It must not look like a verdict, nor like a mistake of the user's."""
    serve(FakeWorkload(failure=ZeroDivisionError("a defect")))

    with pytest.raises(ZeroDivisionError, match="a defect"):
        Answer("estimate", "--gpu", card, "--model", "resnet50", "--batch", "1")
