"""Builds in the user's cache: made once, by one process, and never half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dnnmem_tune.emulator import cache as cache_module
from dnnmem_tune.emulator.build import MANIFEST, find_compiler
from dnnmem_tune.emulator.cache import build_key, cached_builds, clean_cache, ensure_build, find_build
from dnnmem_tune.emulator.installation import Installation
from dnnmem_tune.errors import TraceError


@pytest.fixture
def imagined(tmp_path: Path) -> Installation:
    """An installation whose build is replaced in these tests: only its name and its files matter."""
    library = tmp_path / "libtorch_cuda.so"
    library.write_bytes(b"\x7fELF")
    return Installation(
        python=sys.executable, torch=tmp_path, version="2.14.1+cu130", cuda=(13, 0), libraries=(library,)
    )


@pytest.fixture
def quick_build(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the compiler's work by a file; returns the folders that were built."""
    built: list[Path] = []

    def write_manifest(_installation: Installation, folder: Path, *, compiler: str) -> None:
        built.append(folder)
        (folder / MANIFEST).write_text(json.dumps({"compiler": compiler}))

    monkeypatch.setattr(cache_module, "build", write_manifest)
    return built


def test_a_build_is_made_once(imagined: Installation, quick_build: list[Path], tmp_path: Path) -> None:
    """The second call finds the first one's."""
    folder = tmp_path / "cache"

    assert ensure_build(imagined, folder) == ensure_build(imagined, folder) == folder / build_key(imagined)
    assert len(quick_build) == 1


def test_the_key_changes_with_the_libraries(imagined: Installation) -> None:
    """Another release, or a package that asks for other symbols, needs a build of its own."""
    key = build_key(imagined)
    imagined.libraries[0].write_bytes(b"\x7fELF2")

    assert build_key(imagined) != key
    assert build_key(replace(imagined, version="2.6.0+cu124")).startswith("torch-2.6.0+cu124-")


def test_a_failed_build_leaves_nothing(
    imagined: Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Half a build must not be found by the next process."""

    def fail(_installation: Installation, folder: Path, *, compiler: str) -> None:
        (folder / MANIFEST).write_text("{}")
        raise TraceError(f"{compiler} failed")

    monkeypatch.setattr(cache_module, "build", fail)
    with pytest.raises(TraceError, match="failed"):
        ensure_build(imagined, tmp_path / "cache")

    assert find_build(imagined, tmp_path / "cache") is None
    assert list((tmp_path / "cache").glob("*torch*")) == []


def test_what_a_killed_build_left_is_removed(
    imagined: Installation, quick_build: list[Path], tmp_path: Path
) -> None:
    """Its folder is under a name that is never taken for a finished one."""
    folder = tmp_path / "cache"
    (folder / ".building-1").mkdir(parents=True)
    (folder / ".building-1" / MANIFEST).write_text("{}")

    ensure_build(imagined, folder)
    assert not (folder / ".building-1").exists()
    assert [build.folder.name for build in cached_builds(folder)] == [build_key(imagined)]


def test_cleaning_removes_every_build(imagined: Installation, quick_build: list[Path], tmp_path: Path) -> None:
    """And says how many there were."""
    folder = tmp_path / "cache"
    ensure_build(imagined, folder)

    assert clean_cache(folder) == 1
    assert cached_builds(folder) == []
    assert clean_cache(tmp_path / "nothing") == 0


def test_a_full_disk_is_named(imagined: Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A build that cannot be written is an error with a way out."""

    def fill(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "build", fill)
    with pytest.raises(TraceError) as caught:
        ensure_build(imagined, tmp_path / "cache")

    assert str(caught.value) == (
        f"building the emulated card in {tmp_path / 'cache'} failed: No space left on device; "
        "free some space, or name another folder"
    )


def test_no_compiler_is_named() -> None:
    """With what to install, and the recorder that works without."""
    with pytest.raises(TraceError) as caught:
        find_compiler("no-such-compiler")

    assert str(caught.value) == (
        "building the emulated card needs a C++ compiler, and none of no-such-compiler is installed; "
        "install g++ and binutils, or use the recorder 'fake'"
    )


def test_a_compiler_that_fails_is_quoted(installation: Installation, tmp_path: Path) -> None:
    """Its first error line, not its whole output."""
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho warning >&2\necho 'card.h:1: error: out of tea' >&2\nexit 4\n")
    compiler.chmod(0o755)

    with pytest.raises(TraceError) as caught:
        ensure_build(installation, tmp_path / "cache", compiler=str(compiler))
    assert str(caught.value) == (
        f"building the emulated card failed: {compiler} ended with status 4: card.h:1: error: out of tea"
    )


_BUILD = """
import sys
from pathlib import Path
from dnnmem_tune.emulator.cache import ensure_build
from dnnmem_tune.emulator.installation import find_installation
print(ensure_build(find_installation(sys.argv[1]), Path(sys.argv[2])))
"""


@pytest.mark.slow
def test_two_first_builds_at_once_make_one(
    installation: Installation, tmp_path: Path, own_python: Callable[..., subprocess.Popen[str]]
) -> None:
    """The second process waits for the first, and takes what it made."""
    processes = [own_python("-c", _BUILD, installation.python, str(tmp_path)) for _ in range(2)]
    outputs = [process.communicate()[0] for process in processes]

    assert outputs[0] == outputs[1] == f"{tmp_path / build_key(installation)}\n"
    assert len(cached_builds(tmp_path)) == 1


@pytest.mark.slow
def test_a_build_killed_in_the_middle_is_made_again(
    installation: Installation, tmp_path: Path, own_python: Callable[..., subprocess.Popen[str]]
) -> None:
    """The lock goes with the process, and the next build starts from nothing."""
    process = own_python("-c", _BUILD, installation.python, str(tmp_path))
    while not list(tmp_path.glob(".building-*/objects/*.o")):
        time.sleep(0.02)
        assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()

    assert find_build(installation, tmp_path) is None
    assert ensure_build(installation, tmp_path).exists()
    assert list(tmp_path.glob(".building-*")) == []
