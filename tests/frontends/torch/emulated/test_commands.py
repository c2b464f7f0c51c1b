"""``dnnmem dryrun`` and ``dnnmem emulator`` as they are typed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer.testing

from dnnmem_tune.cli.main import make_app
from dnnmem_tune.emulator.installation import Installation

TRAIN = Path(__file__).with_name("programs") / "train.py"


def invoke(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    result = typer.testing.CliRunner().invoke(make_app(), list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--", sys.executable, TRAIN.name), "no GPU is given; pass one such as --gpu V100-16GB"),
        (("--gpu", "T4", "--", sys.executable, "nosuch.py"), "there is no file 'nosuch.py' in "),
        (
            ("--gpu", "T4", "--conv-workspace", "much", "--", "python"),
            "--conv-workspace 'much' is not known; choose",
        ),
        (("--gpu", "T4", "--find", "=", "--", sys.executable, str(TRAIN)), "--find '=' names no argument; write"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    """Said before anything runs."""
    code, output, error = invoke("dryrun", *arguments)

    assert code in (1, 2)
    assert output == ""
    assert error.startswith(f"dnnmem: {message}")
    assert error.count("\n") == 1


def test_status_lists_builds(tmp_path: Path) -> None:
    """A folder with one finished build, and one that is not."""
    finished = tmp_path / "torch-2.14.1+cu130-0123456789ab"
    finished.mkdir()
    (finished / "build.json").write_text("{}")
    (tmp_path / ".building-7").mkdir()

    code, output, _error = invoke("emulator", "status", "--cache-dir", str(tmp_path))
    assert code == 0
    assert output.splitlines()[0].startswith(("available: torch ", "not available: "))
    assert output.splitlines()[1:] == ["built: torch-2.14.1+cu130-0123456789ab (2 B)"]

    assert invoke("emulator", "clean", "--cache-dir", str(tmp_path)) == (
        0,
        f"removed 1 build from {tmp_path}\n",
        "",
    )


def test_a_run_that_fits_is_described(installation: Installation) -> None:
    """Verdict, peak with its line, phases, and what was read."""
    code, output, error = invoke("dryrun", "--gpu", "T4", "--", installation.python, str(TRAIN))

    assert code == 0
    lines = output.splitlines()
    assert lines[0] == "fits T4: 3 steps done"
    assert "of the card's 14.75 GiB in step " in lines[1]
    assert lines[2].startswith("  build ")
    assert "| loss 0.0" in error.splitlines()


def test_a_run_that_does_not_fit_is_exit_code_3(installation: Installation) -> None:
    """As JSON, with the place."""
    command = [installation.python, str(TRAIN), "--batch-size", "100000"]
    code, output, _error = invoke("dryrun", "--gpu", "1GiB", "--json", "--", *command)
    document = json.loads(output)

    assert code == 3
    assert document["fits"] is False
    assert document["processes"][0]["place"]["file"] == str(TRAIN)
    assert document["processes"][0]["missing_bytes"] > 0


@pytest.mark.slow
def test_find_ends_at_the_largest_that_runs(installation: Installation) -> None:
    """The answer runs, the next one does not, and both were tried."""
    words = ["--gpu", "1GiB", "--steps", "2", "--json", "--find", "batch_size=--batch-size"]
    code, output, _error = invoke("dryrun", *words, "--", installation.python, str(TRAIN))
    document = json.loads(output)
    tried = {probe["value"]: probe["fits"] for probe in document["probes"]}

    assert code == 0
    assert tried[document["largest"]] is True
    assert tried[document["first_too_large"]] is False
    assert document["first_too_large"] == document["largest"] + 1


EXAMPLES = {
    "plain_loop": "torchvision",
    "trainer": "transformers",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "diffusion": "diffusers",
    "segmentation": "torchvision",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run_as_they_are(installation: Installation, name: str) -> None:
    """Programs of six ecosystems, unmodified; skipped where the package is not beside PyTorch."""
    if not (installation.torch.parent / EXAMPLES[name]).exists():
        pytest.skip(f"{EXAMPLES[name]} is not installed beside PyTorch")
    program = Path(__file__).resolve().parents[4] / "examples" / f"dryrun_{name}.py"
    code, output, _error = invoke(
        "dryrun", "--gpu", "A100-40GB", "-q", "--json", "--", installation.python, str(program)
    )
    document = json.loads(output)

    assert code == 0
    assert document["processes"][0]["ending"] == "steps"
    assert Path(document["processes"][0]["peak_place"]["file"]).name == program.name


def test_traces_of_the_emulated_card_are_kept_by_card(installation: Installation) -> None:
    """Scratch depends on multiprocessors, so that a trace for one card must not answer for another."""
    from dnnmem_tune.frontends import Tracing, is_card_specific

    options = {"torch_python": installation.python}
    assert is_card_specific(Tracing(recorder="auto", options=options)) is True
    assert is_card_specific(Tracing(recorder="fake", options=options)) is False


def test_auto_goes_on_with_fake_tensors_where_nothing_can_be_built(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for the emulated card by name is told why there is none."""
    from dnnmem_tune.emulator import cache
    from dnnmem_tune.errors import TraceError
    from dnnmem_tune.frontends import Tracing, open_workload

    def fail(*_arguments: object, **_options: object) -> Path:
        raise TraceError("building the emulated card failed: out of tea")

    monkeypatch.setattr(cache, "ensure_build", fail)
    options = {"torch_python": installation.python}
    with open_workload("mlp", params={}, tracing=Tracing(recorder="auto", options=options)) as traced:
        assert traced.num_traces == 0
    with pytest.raises(TraceError, match="out of tea"):
        open_workload("mlp", params={}, tracing=Tracing(recorder="emulated", options=options))
