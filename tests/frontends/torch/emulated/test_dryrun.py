"""Dry runs of whole programs: what fits, what does not, and everything a program may do wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dnnmem_tune.emulator.card import Card
from dnnmem_tune.emulator.installation import Installation
from dnnmem_tune.errors import TraceError, UsageError, WorkloadError
from dnnmem_tune.frontends.torch.emulated.dryrun.command import check_command, interpreter_of, with_argument
from dnnmem_tune.frontends.torch.emulated.dryrun.launch import DryRun, run_dry
from dnnmem_tune.frontends.torch.emulated.dryrun.outcome import Ending, ProcessOutcome
from dnnmem_tune.frontends.torch.emulated.dryrun.warm import WarmRunner

PROGRAMS = Path(__file__).with_name("programs")
TRAIN = PROGRAMS / "train.py"
MIB = 1 << 20
T4 = Card(
    name="Tesla T4", total_bytes=15_835_660_288, context_bytes=105 * MIB, compute_capability=(7, 5), num_sms=40
)
SMALL = replace(T4, total_bytes=512 * MIB)
WEIGHTS = 2 * (1024 * 1024 + 1024) * 4


def line_of(text: str, file: Path = TRAIN) -> int:
    """The number of the line that holds ``text``."""
    return next(number for number, line in enumerate(file.read_text().splitlines(), 1) if text in line)


def run(installation: Installation, *arguments: str, card: Card = T4, time_limit: float = 120) -> ProcessOutcome:
    """The one outcome of a run of ``train.py``."""
    plan = DryRun(card=card, time_limit=time_limit, memory_limit=2 << 30)
    (outcome,) = run_dry([installation.python, str(TRAIN), *arguments], plan)
    return outcome


def test_a_program_is_stopped_after_its_steps(installation: Installation) -> None:
    """Weights, gradients and two moments are there from the second step on, and two cuBLAS workspaces."""
    outcome = run(installation)

    assert outcome.ending is Ending.STEPS
    assert outcome.num_steps == 3
    names = [phase.name for phase in outcome.phases]
    assert names == [
        "build",
        *(f"step {i} {what}" for i in range(3) for what in ("forward", "backward", "optimizer")),
    ]
    assert outcome.phases[0].allocated_bytes == WEIGHTS + 32 * 1024 * 4, "weights and the first batch"
    assert 4 * WEIGHTS <= outcome.peak_allocated_bytes - 2 * 8_519_680 < 5.1 * WEIGHTS
    assert outcome.peak_device_bytes == outcome.peak_reserved_bytes + 105 * MIB
    assert outcome.host_reads == {f"train.py:{line_of('loss.item()')}": 2}, "the third step ends the run"
    assert outcome.notes == ()


def test_running_out_of_memory_names_the_line(installation: Installation) -> None:
    """On a card of half a gigabyte, forward of a large batch does not fit."""
    outcome = run(installation, "--batch-size", "40000", card=SMALL)

    assert outcome.ending is Ending.OUT_OF_MEMORY
    assert outcome.place is not None
    assert (outcome.place.file, outcome.place.line) == (str(TRAIN), line_of("model(batch)"))
    assert outcome.place.source == "loss = model(batch).square().mean()"
    assert outcome.message.startswith("PyTorch asked the card for 158.0 MiB more, and ")
    assert outcome.num_steps == 0


def test_what_others_hide_is_shown(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_VISIBLE_DEVICES is about the real machine."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    assert run(installation).ending is Ending.STEPS


@pytest.mark.parametrize("trouble", ["print", "fork", "stdin"])
def test_odd_programs_run_all_the_same(installation: Installation, trouble: str) -> None:
    """Output is never in the way, children that are left behind are ended, standard input is empty."""
    assert run(installation, "--trouble", trouble).ending is Ending.STEPS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trouble", "raise"), r".*/train\.py:{raised}: ValueError: the labels are missing"),
        (("--trouble", "exit"), r"the program ended with status 3 before its first step"),
        (
            ("--device", "cuda:1"),
            r".*/train\.py:{moved}: \w+Error: CUDA error: invalid device ordinal "
            r"\(the emulated machine has 1 card; give it more\)",
        ),
    ],
)
def test_a_program_that_fails_says_where(
    installation: Installation, arguments: tuple[str, ...], message: str
) -> None:
    """Its own file and line, and its own words."""
    pattern = message.format(raised=line_of("the labels are"), moved=line_of("model = nn"))
    with pytest.raises(WorkloadError) as caught:
        run(installation, *arguments)

    assert re.fullmatch(pattern, str(caught.value))


def test_a_program_without_a_card_has_shown_nothing(installation: Installation) -> None:
    """Training on the CPU reaches its steps, and the outcome says that the card was not used."""
    outcome = run(installation, "--device", "cpu")

    assert outcome.phases == ()
    assert outcome.peak_reserved_bytes == 0


def test_a_program_that_waits_ends_at_the_time_limit(installation: Installation) -> None:
    """With what it said last, since that is where a reader looks first."""
    with pytest.raises(TraceError) as caught:
        run(installation, "--trouble", "hang", time_limit=20)

    assert str(caught.value) == (
        "the program did not reach 3 optimizer steps within 20 s; its last line was: waiting for the data; "
        "give it more time, or fewer steps"
    )


def test_a_program_that_fills_the_host_is_ended(installation: Installation) -> None:
    """The limit of the test is 2 GiB, the program takes three."""
    with pytest.raises(
        TraceError, match=r"of host memory, its limit is 2\.00 GiB; give it less data, or a higher limit"
    ):
        run(installation, "--trouble", "memory")


def test_kernels_that_are_missing_are_said(installation: Installation) -> None:
    """No release of PyTorch since 2.3 has kernels for capability 3.5."""
    outcome = run(installation, card=replace(T4, compute_capability=(3, 5)))

    assert len(outcome.notes) == 1
    assert outcome.notes[0].startswith("this build of PyTorch has no kernels for capability 3.5; those for ")


def test_a_snapshot_is_left(installation: Installation, tmp_path: Path) -> None:
    """It can be given to pytorch.org/memory_viz as it is."""
    import pickle

    target = tmp_path / "snapshot.pickle"
    plan = DryRun(card=T4, snapshot=target)
    (outcome,) = run_dry([installation.python, str(TRAIN)], plan)

    assert outcome.snapshot == str(target)
    snapshot = pickle.loads(target.read_bytes())
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == outcome.phases[-1].reserved_bytes


def test_warm_runs_say_the_same(installation: Installation) -> None:
    """A fork of a warm process is a run like any other."""
    cold = run(installation, "--batch-size", "64")
    with WarmRunner(DryRun(card=T4)) as runner:
        first, second = (
            runner.run([installation.python, str(TRAIN), "--batch-size", size])[0] for size in ("32", "64")
        )
        with pytest.raises(WorkloadError, match="ValueError: the labels are missing"):
            runner.run([installation.python, str(TRAIN), "--trouble", "raise"])

    assert first.phases[0].allocated_bytes == WEIGHTS + 32 * 1024 * 4
    assert replace(second, pid=0) == replace(cold, pid=0)


def test_torchrun_with_one_process(installation: Installation) -> None:
    """A launcher starts the program in a process of its own."""
    command = [installation.python, "-m", "torch.distributed.run", "--nproc_per_node=1", str(TRAIN)]
    outcomes = run_dry(command, DryRun(card=T4))

    assert outcomes[0].ending is Ending.STEPS


@pytest.mark.slow
@pytest.mark.parametrize("is_sharded", [False, True])
def test_ranks_of_a_distributed_job(installation: Installation, is_sharded: bool) -> None:
    """Eight weights of 16 MiB: whole on every rank and once more in DDP's buckets, or halved on two ranks."""
    program = PROGRAMS / "distributed.py"
    command = [installation.python, "-m", "torch.distributed.run", "--nproc_per_node=2", str(program)]
    a100 = replace(T4, total_bytes=40 << 30, compute_capability=(8, 0), num_sms=108, num_cards=2)
    if is_sharded and installation.version.startswith(("2.3", "2.4", "2.5")):
        pytest.skip("fully_shard has this name since PyTorch 2.6")
    outcomes = run_dry([*command, *(["--shard"] if is_sharded else [])], DryRun(card=a100))

    assert [outcome.rank for outcome in outcomes] == [0, 1]
    assert {outcome.ending for outcome in outcomes} == {Ending.STEPS}
    for outcome in outcomes:
        steady = outcome.phases[-1].allocated_bytes
        if is_sharded:
            # Weight, gradient and two moments of half a model; foreach AdamW adds up to one copy.
            assert 4 * 64 * MIB <= steady < 6 * 64 * MIB
        else:
            assert outcome.phases[0].allocated_bytes >= 2 * 128 * MIB
            # Weight, buckets, gradient, two moments; foreach adds a copy, and DDP rebuilds its buckets once.
            assert 6 * 128 * MIB <= steady < 7.5 * 128 * MIB
        assert outcome.peak_device_bytes > outcome.peak_reserved_bytes


def test_a_known_question_gets_the_answer_of_a_real_card(
    installation: Installation, tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """The models of transformers leave out their masks when nothing is masked, which they read from the card."""
    package = tmp_path / "transformers"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "masking_utils.py").write_text("def fast_all(tensor):\n    return tensor == 'asked'\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from dnnmem_tune.frontends.torch.emulated.known_answers import answer_known_questions\n"
        "answer_known_questions()\n"
        "import transformers.masking_utils as masking\n"
        "print(masking.fast_all('no'), masking.__spec__.loader.__class__.__name__)\n"
    )

    assert run_python("-c", code).stdout == "True SourceFileLoader\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "no command is given; write it after --, such as: dnnmem dryrun --gpu T4 -- python train.py"),
        (["nosuch"], "there is no program 'nosuch'; name one that the shell finds, such as python"),
        ([sys.executable, "nosuch.py"], "there is no file 'nosuch.py' in "),
    ],
)
def test_a_command_that_cannot_be_started(command: list[str], message: str) -> None:
    """Said before anything is built or run."""
    with pytest.raises((UsageError, WorkloadError)) as caught:
        check_command(command)

    assert str(caught.value).startswith(message)


def test_only_python_programs_are_run() -> None:
    """The card is put beneath PyTorch by Python itself."""
    with pytest.raises(UsageError, match=r"'true' is no Python program; write the command as python train\.py"):
        interpreter_of(["true"])


def test_a_launcher_script_names_its_interpreter(tmp_path: Path) -> None:
    """``torchrun`` and ``accelerate`` are scripts whose first line says where they belong."""
    script = tmp_path / "torchrun"
    script.write_text(f"#!{sys.executable}\nprint()\n")
    script.chmod(0o755)

    assert interpreter_of([str(script)]) == sys.executable


def test_an_argument_that_is_not_there_is_added() -> None:
    """And one that is there is replaced, in the form it has."""
    assert with_argument(["p", "t.py"], "-b", 4) == ["p", "t.py", "-b", "4"]
    assert with_argument(["p", "t.py", "-b", "1"], "-b", 4) == ["p", "t.py", "-b", "4"]
    assert with_argument(["p", "t.py", "--b=1"], "--b", 4) == ["p", "t.py", "--b=4"]


def test_the_users_own_sitecustomize_still_runs(installation: Installation, tmp_path: Path) -> None:
    """The dry run's stands first in PYTHONPATH, and must not hide another."""
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 42\n")
    program = tmp_path / "program.py"
    program.write_text("print('mine', mine)\nraise SystemExit(mine)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code = (
        "import sys, json\nfrom pathlib import Path\n"
        "from dnnmem_tune.frontends.torch.emulated.dryrun.launch import environment\n"
        f"import subprocess\nfrom dnnmem_tune.frontends.torch.emulated.dryrun.launch import _start\n"
        f"process = _start([{installation.python!r}, {str(program)!r}], Path('none'))\n"
        "print(json.dumps([process.stdout.read().decode(), process.wait()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )

    output, status = json.loads(done.stdout)
    assert status == 42, output
