"""Traces on disk."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest

from dnnmem_tune.errors import UsageError
from dnnmem_tune.frontends.trace_store import DiskStore
from dnnmem_tune.ir.size import Polynomial
from dnnmem_tune.ir.trace import Category, MemoryTrace, Operation, Phase, Storage

KEY = {"workload": "mlp", "batch_size": 8, "params": {"width": 4}}


def trace_of(nbytes: int) -> MemoryTrace:
    """One storage."""
    return MemoryTrace(
        storages=(Storage(Polynomial(nbytes), Category.ACTIVATION, 0),),
        operations=(Operation("aten::mm", "", Phase.FORWARD, 0),),
        events=(0,),
    )


def test_what_was_saved_is_loaded_by_another_store(tmp_path: Path) -> None:
    """The folder is the state; a new process sees it."""
    DiskStore(tmp_path).save(KEY, trace_of(5))
    assert DiskStore(tmp_path).load(dict(reversed(KEY.items()))) == trace_of(5)
    assert DiskStore(tmp_path).load({**KEY, "batch_size": 16}) is None


@pytest.mark.parametrize(
    "damage",
    [b"", b"not gzip", gzip.compress(b"no checksum"), gzip.compress(b"0" * 64 + b"\n{}")],
    ids=["empty", "not gzip", "no checksum", "wrong checksum"],
)
def test_a_damaged_entry_is_removed_and_made_again(tmp_path: Path, damage: bytes) -> None:
    """A power cut must cost one trace, not the study."""
    store = DiskStore(tmp_path)
    store.save(KEY, trace_of(5))
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(damage)

    assert store.load(KEY) is None
    assert list(tmp_path.iterdir()) == []
    store.save(KEY, trace_of(6))
    assert store.load(KEY) == trace_of(6)


def test_a_cut_off_entry_is_told_from_a_whole_one(tmp_path: Path) -> None:
    """Half a file decompresses to half a document."""
    store = DiskStore(tmp_path)
    store.save(KEY, trace_of(5))
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(entry.read_bytes()[:-10])
    assert store.load(KEY) is None


def test_writers_and_readers_at_once_see_whole_traces_only(tmp_path: Path) -> None:
    """A file is moved into place, so no reader sees half of it."""
    store = DiskStore(tmp_path)
    seen: list[MemoryTrace | None] = []
    writers = [threading.Thread(target=lambda n=n: store.save(KEY, trace_of(n))) for n in range(1, 21)]  # type: ignore[misc]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        seen.append(store.load(KEY))
    for writer in writers:
        writer.join()

    assert all(trace is None or trace in [trace_of(n) for n in range(1, 21)] for trace in seen)
    assert [path.suffix for path in tmp_path.iterdir()] == [".gz"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """Asked for a cache and not getting one is an error, not a silence."""
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="cannot be written"):
        DiskStore(tmp_path / "traces")


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    """The message names the folder and the way out."""
    (tmp_path / "traces").write_text("")
    with pytest.raises(UsageError, match=r"traces cannot be written \(File exists\); name another folder"):
        DiskStore(tmp_path / "traces")
