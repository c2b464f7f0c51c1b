"""Traces shared by processes: a folder that any number of them read, and add to under locks.

Layout, below the cache folder, for each workload (hash of ``TracerFactory.identity``)::

    index.jsonl              one line per traced configuration: its leaves and its signature
    traces/<signature>.json  the trace; configurations with equal traces share one
    locks/<key>.lock         held by the process that traces this configuration

A folder that cannot be written, or a line or file that cannot be read, costs a trace and never a
verdict: everything here can be rebuilt.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dnnmem_tune.guard.inert import TracedRecord
from dnnmem_tune.guard.keys import Leaf, Leaves

LOCK_PATIENCE_SECONDS = 120.0
"""How long to wait for another process to finish the trace of the same configuration."""

_POLL_SECONDS = 0.02


class CacheWarning(UserWarning):
    """The cache folder cannot be used; the study goes on without sharing traces."""


class TraceStore:
    """The traces of one workload on disk.

    Args:
        folder: Cache folder; None to share nothing.
        identity: What every trace depends on besides the hyperparameters.
        lock_patience: Seconds to wait for another process that traces the same configuration.

    """

    def __init__(
        self, folder: Path | None, identity: str, *, lock_patience: float = LOCK_PATIENCE_SECONDS
    ) -> None:
        self._patience = lock_patience
        self._folder = folder / "guard" / hashlib.sha256(identity.encode()).hexdigest()[:32] if folder else None
        self._offset = 0
        if self._folder is not None:
            try:
                (self._folder / "traces").mkdir(parents=True, exist_ok=True)
                (self._folder / "locks").mkdir(exist_ok=True)
            except OSError as error:
                self._give_up(error)

    def read_new(self) -> list[TracedRecord]:
        """Return the configurations that were traced since the last call, by any process."""
        if self._folder is None:
            return []
        records = []
        try:
            with (self._folder / "index.jsonl").open("rb") as index:
                index.seek(self._offset)
                for line in index:
                    if not line.endswith(b"\n"):
                        break  # Another process is writing it.
                    self._offset += len(line)
                    record = _decode_record(line)
                    if record is not None:
                        records.append(record)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._give_up(error)
        return records

    def load(self, signature: str) -> Any:
        """Return the document of a trace, or None where it is missing or damaged."""
        if self._folder is None:
            return None
        try:
            return json.loads((self._folder / "traces" / f"{signature}.json").read_bytes())
        except (OSError, ValueError):
            return None

    def add(self, record: TracedRecord, document: Any) -> None:
        """Write a traced configuration for the others."""
        if self._folder is None or document is None:
            return
        try:
            target = self._folder / "traces" / f"{record.signature}.json"
            if not target.exists():
                partial = target.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}.partial")
                partial.write_text(json.dumps(document, separators=(",", ":")))
                partial.replace(target)
            line = json.dumps({"leaves": record.leaves, "signature": record.signature}, allow_nan=True) + "\n"
            with (self._folder / "index.jsonl").open("ab") as index:
                fcntl.flock(index, fcntl.LOCK_EX)
                index.write(line.encode())
        except OSError as error:
            self._give_up(error)

    @contextmanager
    def claim(self, key: str) -> Iterator[None]:
        """Hold the right to trace a configuration.

        Waits while another process traces it, so read what is new before you start; a process
        that dies loses its claim.
        """
        lock = self._open_lock(key)
        if lock is None:
            yield
            return
        with lock:
            self._acquire(lock)
            yield

    def _open_lock(self, key: str) -> IO[bytes] | None:
        if self._folder is None:
            return None
        try:
            return (self._folder / "locks" / f"{key}.lock").open("ab")
        except OSError as error:
            self._give_up(error)
            return None

    def _acquire(self, lock: IO[bytes]) -> None:
        deadline = time.monotonic() + self._patience
        # Beyond its patience a second trace beside a stuck one is better than no verdict.
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_POLL_SECONDS)
            except OSError as error:  # A file system without locks.
                self._give_up(error)
                return
            else:
                return

    def _give_up(self, error: OSError) -> None:
        warnings.warn(
            f"the cache folder {self._folder} cannot be used ({error}); traces are not shared with other "
            "processes; pass cache_dir=None, or a folder that can be written",
            CacheWarning,
            stacklevel=3,
        )
        self._folder = None


def _decode_record(line: bytes) -> TracedRecord | None:
    try:
        document = json.loads(line)
        leaves: Leaves = tuple((str(name), _leaf(value)) for name, value in document["leaves"])
        return TracedRecord(leaves, str(document["signature"]))
    except (ValueError, KeyError, TypeError):
        return None


def _leaf(value: Any) -> Leaf:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r} is no leaf")
