"""Run one script again and again, each time in a fork of a process that has imported what it needs.

Runs in the user's interpreter. One JSON document a line on standard input; for each run the
answer is first the child's process, then how it ended.

    -> {"emulator": FOLDER, "card": {...}}
    <- {"ready": true}
    -> {"setup": FILE, "script": "train.py", "arguments": ["--batch-size", "8"], "output": FILE}
    <- {"pid": 4711}
    <- {"status": 0}
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import IO, Any

from dnnmem_tune.emulator.card import decode_card
from dnnmem_tune.emulator.load import LoadedCard, load
from dnnmem_tune.frontends.torch.emulated.dryrun.inside import Watch
from dnnmem_tune.frontends.torch.emulated.warm_up import warm_up


def main() -> None:
    """Serve runs until standard input ends."""
    requests, replies = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    setup = json.loads(requests.readline())
    card = load(setup["emulator"], decode_card(setup["card"]))
    import torch

    warm_up()
    torch.set_num_threads(1)  # forked children must not miss threads
    _send(replies, {"ready": True})
    for line in requests:
        _run(json.loads(line), card, replies)
    os._exit(0)


def _send(stream: IO[str], document: dict[str, Any]) -> None:
    stream.write(json.dumps(document) + "\n")
    stream.flush()


def _run(request: dict[str, Any], card: LoadedCard, replies: IO[str]) -> None:
    before = set(sys.modules)
    imported = Path(request["setup"]).with_name("modules")
    child = os.fork()
    if child == 0:
        _be_the_script(request, card, before, imported)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    _send(replies, {"pid": child})
    _pid, status = os.waitpid(child, 0)
    _import_likewise(imported)
    _send(replies, {"status": os.waitstatus_to_exitcode(status)})


def _be_the_script(request: dict[str, Any], card: LoadedCard, before: set[str], imported: Path) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    setup = json.loads(Path(request["setup"]).read_text())
    card.become(decode_card(setup["card"]))
    script = request["script"]
    sys.argv = [script, *request["arguments"]]
    sys.path.insert(0, str(Path(script).resolve().parent))
    status = 0

    def note_modules() -> None:
        names = [name for name in set(sys.modules) - before if _is_installed(name)]
        imported.write_text("\n".join(sorted(names)))

    watch = Watch(setup, card, at_end=note_modules)
    watch.install()
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)


def _is_installed(name: str) -> bool:
    """Whether a module is a library's: the user's own may do anything when it is imported."""
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "/site-packages/" in file or "/lib/python3" in file


def _import_likewise(imported: Path) -> None:
    """Import what the child had to, so that the next one need not."""
    if not imported.exists():
        return
    for name in imported.read_text().splitlines():
        # Some only import in their own circumstances.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    imported.unlink()


if __name__ == "__main__":
    main()
