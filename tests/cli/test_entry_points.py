"""The installed commands, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STEP = """
import torch

def build(batch_size, device, width=64):
    layer = torch.nn.Linear(width, width).to(device)
    inputs = torch.randn(batch_size, width, device=device)
    def step():
        layer(inputs).sum().backward()
    return step
"""

ENDLESS = """
def build(batch_size, device):
    while True:
        pass
"""


def _command(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_command(arguments[0]), *arguments[1:]], capture_output=True, text=True, timeout=300, check=False, cwd=cwd
    )


def test_no_arguments_give_the_help() -> None:
    """What a newcomer types first."""
    done = _run("dnnmem")

    assert done.returncode == 0
    assert "maxbatch" in done.stdout


def test_version_is_printed() -> None:
    """Reports of defects begin with it."""
    done = _run("dnnmem", "--version")

    assert (done.returncode, done.stdout) == (0, "dnnmem_tune 0.1.0\n")


def test_maxbatch_answers_for_a_file_of_the_users(tmp_path: Path) -> None:
    """The main job, end to end, in JSON."""
    (tmp_path / "train.py").write_text(STEP)

    arguments = ("--gpu", "1GiB", "--workload", "train.py:build", "--set", "width=128", "--json")
    done = _run("dnnmem-maxbatch", *arguments, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["params"] == {"width": 128}
    assert document["first_too_large"] == document["largest_batch"] + 1
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("source", "arguments", "code", "words"),
    [
        (None, ("--workload", "missing.py:build"), 1, ("missing.py",)),
        (STEP, ("--workload", "train.py:other"), 1, ("other", "train.py")),
        (STEP, ("--workload", "train.py:build", "--set", "depth=3"), 2, ("depth", "width")),
        ("def build(batch_size, device):\n    raise ValueError('no data')\n", (), 1, ("no data", "train.py")),
        ("import sys\ndef build(batch_size, device):\n    sys.exit(4)\n", (), 1, ("exit",)),
        (STEP, ("--workload", "train.py:build", "--gpu", "V100-16G"), 2, ("V100-16GB",)),
        (
            STEP,
            ("--workload", "train.py:build", "--cache-dir", "/proc/none"),
            2,
            ("/proc/none", "cannot be written"),
        ),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, source: str | None, arguments: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    """Without a traceback, and with what to look at."""
    if source is not None:
        (tmp_path / "train.py").write_text(source)
    given = arguments or ("--workload", "train.py:build")
    gpu = () if "--gpu" in given else ("--gpu", "1GiB")

    done = _run("dnnmem", "estimate", *gpu, "--batch", "4", *given, cwd=tmp_path)

    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_check_without_a_gpu_says_so_in_one_line(tmp_path: Path) -> None:
    """And names the command that needs none."""
    (tmp_path / "train.py").write_text(STEP)
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}

    done = subprocess.run(
        [_command("dnnmem"), "check", "--workload", "train.py:build", "--batch", "4"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=hidden,
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("dnnmem: dnnmem check runs the job on a GPU, and torch ")
    assert done.stderr.endswith("sees none here; use dnnmem estimate, which needs none\n")


def test_control_c_ends_at_once_and_leaves_no_worker(tmp_path: Path) -> None:
    """GIVEN a build function that never ends WHEN Ctrl-C comes THEN one line, code 130."""
    (tmp_path / "train.py").write_text(ENDLESS)
    process = subprocess.Popen(
        [_command("dnnmem"), "estimate", "--gpu", "1GiB", "--workload", "train.py:build", "--batch", "4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    time.sleep(4)

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)

    assert (process.returncode, out, err) == (130, "", "dnnmem: interrupted\n")


def test_reader_that_has_seen_enough_is_no_error() -> None:
    """``dnnmem gpus | head -1``."""
    done = subprocess.run(
        f"{_command('dnnmem')} gpus | head -1", shell=True, capture_output=True, text=True, check=False
    )

    assert done.stdout.startswith("name")
    assert done.stderr == ""
