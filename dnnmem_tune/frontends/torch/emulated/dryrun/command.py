"""The user's command line: which interpreter it runs, and one of its arguments with another value."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from dnnmem_tune.errors import UsageError, WorkloadError


def check_command(command: Sequence[str]) -> None:
    """Verify that ``command`` can be started, and that the script it names is there.

    Raises:
        UsageError: If there is no command.
        WorkloadError: If its program or its script does not exist.

    """
    if not command:
        raise UsageError(
            "no command is given; write it after --, such as: dnnmem dryrun --gpu T4 -- python train.py"
        )
    if shutil.which(command[0]) is None:
        raise WorkloadError(f"there is no program {command[0]!r}; name one that the shell finds, such as python")
    script = next((word for word in command[1:] if word.endswith(".py")), None)
    if script is not None and "-m" not in command and not Path(script).exists():
        raise WorkloadError(f"there is no file {script!r} in {Path.cwd()}")


def interpreter_of(command: Sequence[str]) -> str:
    """Return the Python that ``command`` runs in: its first word, or what a launcher script's first line names.

    Raises:
        UsageError: If it is no Python program.

    """
    program = Path(shutil.which(command[0]) or command[0])
    if program.name.startswith("python"):
        return str(program)
    with program.open("rb") as file:
        first = file.readline(512)
    if first.startswith(b"#!") and b"python" in first:
        words = first[2:].decode(errors="replace").split()
        name = words[1] if words[0].endswith("/env") and len(words) > 1 else words[0]
        return shutil.which(name) or name
    raise UsageError(f"{command[0]!r} is no Python program; write the command as python train.py, or torchrun ...")


def script_of(command: Sequence[str]) -> int | None:
    """Return the position of the script in ``python [-u ...] script.py ...``; None for any other command.

    Example:
        >>> script_of(["python3", "-u", "train.py", "--lr", "1"]), script_of(["torchrun", "train.py"])
        (2, None)

    """
    if not Path(command[0]).name.startswith("python"):
        return None
    for index, word in enumerate(command[1:], 1):
        if not word.startswith("-"):
            return index if word.endswith(".py") else None
        if word not in ("-u", "-O", "-B"):
            return None
    return None


def with_argument(command: Sequence[str], option: str, value: int) -> list[str]:
    """Return ``command`` with ``option`` set to ``value``: where it stands, or else at the end.

    Args:
        command: Words of the command line.
        option: ``--batch-size``, or ``batch=`` for programs that take ``batch=32``.
        value: What to set it to.

    Example:
        >>> with_argument(["python", "train.py", "--batch-size", "8", "--lr=1"], "--batch-size", 32)
        ['python', 'train.py', '--batch-size', '32', '--lr=1']
        >>> with_argument(["python", "train.py", "--batch-size=8"], "--batch-size", 32)
        ['python', 'train.py', '--batch-size=32']
        >>> with_argument(["python", "train.py"], "data.batch=", 32)
        ['python', 'train.py', 'data.batch=32']

    """
    words, text = list(command), str(value)
    joined = option if option.endswith("=") else f"{option}="
    for index, word in enumerate(words):
        if word.startswith(joined):
            words[index] = joined + text
            return words
        if word == option and index + 1 < len(words):
            words[index + 1] = text
            return words
    return [*words, joined + text] if option.endswith("=") else [*words, option, text]
