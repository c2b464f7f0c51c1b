"""The options that several commands share, and the session that they describe."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dnnmem_tune.errors import UsageError

if TYPE_CHECKING:
    from dnnmem_tune.api import EstimationSession


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a whole number") from error


def whole(name: str, help_text: str) -> Any:
    """Return an option that takes a whole number; its range is checked with the other arguments."""
    return typer.Option(name, metavar="N", parser=_whole_number, help=help_text)


ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="A built-in model (resnet50, bert-base, ...), hf:CONFIG, timm:NAME, torchvision:NAME or FILE.onnx.",
    ),
]
WorkloadOption = Annotated[
    str | None,
    typer.Option(
        "--workload",
        metavar="FILE:FUNCTION",
        help="Your own training code: build(batch_size, device, **hyperparameters), which returns a step.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A hyperparameter of the workload, as Python writes it. Repeat."
    ),
]
PrecisionOption = Annotated[
    str | None, typer.Option("--precision", help="Of a built-in model: fp32, fp16, bf16 or bf16-pure.")
]
OptimizerOption = Annotated[
    str | None, typer.Option("--optimizer", help="Of a built-in model: adamw, 'sgd(momentum=0.9)', ...")
]
InputSizeOption = Annotated[
    int | None,
    whole("--input-size", "Of a built-in model: image side, sequence length or number of features."),
]
DimOption = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=N", help="Of an ONNX model: the extent of a named dimension. Repeat."),
]
TrainAsOption = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="FRAMEWORK",
        help="Of an ONNX model: estimate training as pytorch, tensorflow or ort would.",
    ),
]
GpuOption = Annotated[
    str | None,
    typer.Option("--gpu", metavar="CARD", help="V100-16GB, 24GiB, local or card.toml; dnnmem gpus lists them."),
]
SafetyOption = Annotated[
    str | None, typer.Option("--safety", help="Device memory to leave unused: 5%, 0.05 or 512MiB.")
]
ConvWorkspaceOption = Annotated[
    str,
    typer.Option(
        "--conv-workspace",
        help="What cuDNN's convolutions take: none (lower end), limited (usual) or benchmark (upper end).",
    ),
]
AllocConfOption = Annotated[
    str | None,
    typer.Option(
        "--alloc-conf",
        help="PYTORCH_ALLOC_CONF of the job, or MXNET_GPU_MEM_...=VALUE; by default that of this environment.",
    ),
]
FrameworkOption = Annotated[str, typer.Option("--framework", help="torch, tensorflow, mxnet or onnx.")]
RecorderOption = Annotated[str, typer.Option("--recorder", help="How the job is traced: auto, fake or emulated.")]
CacheOption = Annotated[
    bool, typer.Option("--cache/--no-cache", help="Keep traces on disk, so that the next run need not trace.")
]
CacheDirOption = Annotated[
    Path | None, typer.Option("--cache-dir", help="Where traces are kept; implies --cache.")
]
TimeLimitOption = Annotated[float | None, typer.Option("--time-limit", help="Seconds that one trace may take.")]
MemoryLimitOption = Annotated[
    str | None, typer.Option("--memory-limit", help="Host memory that one trace may take, such as 8GiB.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON (docs/json.md) instead of text.")]

_SEQUENCES = ("bert-base", "bert-large", "gpt2", "lstm")
_VECTORS = ("mlp",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to estimate, from the options that every command has."""

    model: str | None
    workload: str | None
    settings: list[str] | None
    precision: str | None = None
    optimizer: str | None = None
    input_size: int | None = None
    framework: str = "torch"
    dims: list[str] | None = None
    train_as: str | None = None
    recorder: str = "auto"
    conv_workspace: str = "none"
    alloc_conf: str | None = None
    safety: str | None = None
    cache: bool = False
    cache_dir: Path | None = None
    time_limit: float | None = None
    memory_limit: str | None = None

    @property
    def reference(self) -> str:
        """The workload.

        Raises:
            UsageError: If not exactly one is given.

        """
        if self.model is not None and self.workload is not None:
            raise UsageError("--model and --workload name two workloads; give one")
        reference = self.model if self.model is not None else self.workload
        if not reference:
            raise UsageError(
                "no workload is given; name a built-in one (--model resnet50) "
                "or your own (--workload train.py:build)"
            )
        return reference

    @property
    def params(self) -> dict[str, Any]:
        """The hyperparameters.

        Raises:
            UsageError: If one is not of the form NAME=VALUE, is given twice, or belongs to built-in models only.

        """
        from dnnmem_tune.api.arguments import plain_params

        params: dict[str, Any] = {"dims": self._dims()} if self.dims else {}
        shortcuts = {"--precision": self.precision, "--optimizer": self.optimizer, "--input-size": self.input_size}
        for option, value in shortcuts.items():
            if value is None:
                continue
            if self.model is None:
                raise UsageError(f"{option} is for built-in models (--model); for your own workload write --set")
            params[_hyperparameter(option, self.model)] = value
        for text in self.settings or []:
            name, equals, value = text.partition("=")
            if not equals or not name.strip():
                raise UsageError(f"--set {text!r} has no value; write --set NAME=VALUE, such as --set width=512")
            if name.strip() in params:
                raise UsageError(f"{name.strip()} is given twice")
            params[name.strip()] = _literal(value)
        return plain_params(params)

    def _dims(self) -> dict[str, int]:
        if not self.is_onnx:
            raise UsageError(
                "--dim is for ONNX models; write --set NAME=VALUE for another workload's hyperparameters"
            )
        dims: dict[str, int] = {}
        for text in self.dims or []:
            # Exporters put almost anything into a name, an equals sign too.
            name, equals, value = text.rpartition("=")
            if not equals or not name.strip() or not value.strip().lstrip("-").isdigit():
                raise UsageError(f"--dim {text!r} has no extent; write --dim NAME=N, such as --dim sequence=128")
            if name.strip() in dims:
                raise UsageError(
                    f"dimension {name.strip()} is given twice: {dims[name.strip()]} and {value.strip()}"
                )
            dims[name.strip()] = int(value)
        return dims

    @property
    def is_onnx(self) -> bool:
        """Whether the workload is an ONNX model."""
        return self.reference.lower().endswith(".onnx") or self.framework.partition(":")[0] == "onnx"

    @property
    def frontend(self) -> str:
        """The front-end, and how an ONNX model is trained.

        Raises:
            UsageError: If ``--as`` is given for another workload.

        """
        if self.train_as is None:
            return self.framework
        if not self.is_onnx:
            raise UsageError("--as is for ONNX models; other workloads are estimated as they are written")
        return f"onnx:{self.train_as}"

    @property
    def allocator(self) -> tuple[str | None, str]:
        """The allocator's configuration, and where it comes from."""
        if self.alloc_conf is not None:
            return self.alloc_conf, "--alloc-conf"
        if self.frontend == "onnx:pytorch" or (self.framework == "torch" and not self.is_onnx):
            # Both names are read by PyTorch; the first is the newer one and wins.
            for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
                if os.environ.get(variable):
                    return os.environ[variable], f"the environment variable {variable}"
        if self.framework == "mxnet":
            from dnnmem_tune.allocators.mxnet_pool import VARIABLES

            given = [f"{name}={os.environ[name]}" for name in VARIABLES if os.environ.get(name)]
            if given:
                return " ".join(given), "environment variables"
        return None, ""

    @contextmanager
    def session(self) -> Iterator[EstimationSession]:
        """Open the session, with progress on standard error if that is a terminal."""
        from dnnmem_tune.api import EstimationSession
        from dnnmem_tune.units import parse_bytes

        reference, (alloc_conf, _) = self.reference, self.allocator
        with (
            progress() as say,
            EstimationSession(
                reference,
                framework=self.frontend,
                recorder=self.recorder,
                conv_workspace=self.conv_workspace,
                alloc_conf=alloc_conf,
                safety=self.safety,
                cache_dir=self.cache_dir or (user_cache() if self.cache else None),
                time_limit=self.time_limit,
                memory_limit=parse_bytes(self.memory_limit) if self.memory_limit is not None else None,
                on_progress=say,
            ) as session,
        ):
            yield session

    def remarks(self) -> list[str]:
        """Return what the reader should know of how the options were completed."""
        alloc_conf, source = self.allocator
        return [f"The allocator is configured by {source}: {alloc_conf}"] if alloc_conf else []


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Give a function that shows what is being done, for as long as it is; nothing unless on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _text: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    status = console.status("")

    def say(text: str) -> None:
        status.update(f"{text} ...")
        status.start()

    try:
        yield say
    finally:
        status.stop()


def user_cache() -> Path:
    """Return the folder for traces of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dnnmem_tune" / "traces"


def required_gpu(gpu: str | None) -> str:
    """Return the card.

    Raises:
        UsageError: If none is given.

    """
    if not gpu:
        raise UsageError(
            "no GPU is given; pass one such as --gpu V100-16GB or --gpu 24GiB (dnnmem gpus lists them)"
        )
    return gpu


def print_json(document: Mapping[str, Any]) -> None:
    """Print a document, and nothing else, on standard output."""
    import json

    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def _hyperparameter(option: str, model: str) -> str:
    if option != "--input-size":
        return option.removeprefix("--")
    known = model.lower().replace("_", "-")
    if known in _SEQUENCES or known.startswith("hf:"):
        return "seq_len"
    return "in_features" if known in _VECTORS else "image_size"


_NO_NUMBERS = {text: float(text) for text in ("nan", "inf", "+inf", "-inf")}
"""Read as what they say, so that they are refused as such and not passed on as text."""


def _literal(text: str) -> Any:
    """Return a Python literal, or the text itself where it is none."""
    words = {"true": True, "false": False, "none": None, **_NO_NUMBERS}
    if text.strip().lower() in words:
        return words[text.strip().lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
