"""Traces on disk, shared by several processes.

One file a trace, named after the hash of its key. A file is written beside its place and
moved there, so that a reader never sees half of one; it carries a checksum, and what does
not check is removed and made again.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

from dnnmem_tune.errors import UsageError
from dnnmem_tune.ir.encoding import decode_trace, encode_trace
from dnnmem_tune.ir.trace import MemoryTrace


class DiskStore:
    """A folder of traces."""

    def __init__(self, directory: Path) -> None:
        """Make the folder if it is not there.

        Raises:
            UsageError: If it cannot be made or written.

        """
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError as error:
            raise UsageError(
                f"the trace cache {directory} cannot be written ({error.strerror}); "
                "name another folder or go without a cache"
            ) from error

    def load(self, key: dict[str, Any]) -> MemoryTrace | None:
        """Return the trace under ``key``; nothing where there is none, or only a damaged one."""
        path = self._path(key)
        try:
            text = gzip.decompress(path.read_bytes())
            checksum, _, body = text.partition(b"\n")
            if checksum.decode() != hashlib.sha256(body).hexdigest():
                raise ValueError("the checksum does not match")
            document = json.loads(body)
            if document["key"] != json.loads(json.dumps(key)):
                raise ValueError("the file holds another key")
            return decode_trace(document["trace"])
        except FileNotFoundError:
            return None
        except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error):
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def save(self, key: dict[str, Any], trace: MemoryTrace) -> None:
        """Keep ``trace`` under ``key``; a full disk is no reason to lose the estimate."""
        body = json.dumps({"key": key, "trace": encode_trace(trace)}, separators=(",", ":")).encode()
        text = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        with contextlib.suppress(OSError):
            handle, name = tempfile.mkstemp(dir=self._directory, suffix=".partial")
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(gzip.compress(text, compresslevel=1))
                os.replace(name, self._path(key))
            except OSError:
                os.unlink(name)

    def _path(self, key: dict[str, Any]) -> Path:
        text = json.dumps(key, sort_keys=True, separators=(",", ":"))
        return self._directory / f"{hashlib.sha256(text.encode()).hexdigest()}.json.gz"
