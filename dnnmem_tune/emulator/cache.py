"""The built libraries of this user: one folder per release of PyTorch and state of the sources.

A build happens in a folder of its own and is renamed when it is complete, under a lock that
the system gives up with the process. So two first builds at once make one, and a build that
is killed leaves nothing that could be taken for a finished one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dnnmem_tune.emulator.build import MANIFEST, SOURCES, build, find_compiler
from dnnmem_tune.emulator.installation import Installation
from dnnmem_tune.errors import TraceError


@dataclass(frozen=True, slots=True)
class CachedBuild:
    """A finished build."""

    folder: Path

    nbytes: int
    """On disk."""


def default_cache_folder() -> Path:
    """Return the per-user folder that builds are kept in."""
    return Path.home() / ".cache" / "dnnmem_tune" / "emulator"


def build_key(installation: Installation) -> str:
    """Return the name of the build for ``installation``: it changes with each thing that the build reads."""
    digest = hashlib.sha256()
    for module in ("build.py", "stubs.py"):
        digest.update((SOURCES.parent / module).read_bytes())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    for library in installation.libraries:
        digest.update(f"{library}:{library.stat().st_size}".encode())
    return f"torch-{installation.version}-{digest.hexdigest()[:12]}"


def find_build(installation: Installation, cache: Path) -> Path | None:
    """Return the folder of the finished build for ``installation``, if there is one."""
    folder = cache / build_key(installation)
    return folder if (folder / MANIFEST).exists() else None


def ensure_build(installation: Installation, cache: Path | None = None, *, compiler: str | None = None) -> Path:
    """Return the folder of the build for ``installation``, and build it first where that is needed.

    Args:
        installation: The PyTorch to emulate a card for.
        cache: Folder of builds; the user's own by default.
        compiler: A C++ compiler; one of the machine's by default.

    Raises:
        TraceError: If it cannot be built; the message says why.

    """
    cache = cache or default_cache_folder()
    found = find_build(installation, cache)
    if found:
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / ".lock"):
            # Another process may have built it while this one waited.
            return find_build(installation, cache) or _build_into(installation, cache, find_compiler(compiler))
    except OSError as error:
        raise TraceError(
            f"building the emulated card in {cache} failed: {error.strerror or error}; "
            "free some space, or name another folder"
        ) from error


def cached_builds(cache: Path | None = None) -> list[CachedBuild]:
    """Return every finished build, oldest first."""
    cache = cache or default_cache_folder()
    folders = sorted(
        (path.parent for path in cache.glob(f"torch-*/{MANIFEST}")), key=lambda path: path.stat().st_mtime
    )
    return [CachedBuild(folder, sum(file.lstat().st_size for file in folder.iterdir())) for folder in folders]


def clean_cache(cache: Path | None = None) -> int:
    """Remove every build, finished or not, and return the number of finished ones."""
    cache = cache or default_cache_folder()
    if not cache.exists():
        return 0
    with _locked(cache / ".lock"):
        num_builds = len(cached_builds(cache))
        for folder in [*cache.glob("torch-*"), *cache.glob(".building-*")]:
            shutil.rmtree(folder)
    return num_builds


def _build_into(installation: Installation, cache: Path, compiler: str) -> Path:
    for abandoned in cache.glob(".building-*"):  # the lock is held: nobody works there
        shutil.rmtree(abandoned)
    working = cache / f".building-{os.getpid()}"
    working.mkdir()
    try:
        build(installation, working, compiler=compiler)
        finished = cache / build_key(installation)
        working.rename(finished)
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise
    return finished


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
