"""The worker process: imports MXNet and the workload once, binds it in a child for each request.

Speaks the protocol of ``frontends.torch.worker``. Binding allocates nothing on a CPU until
something runs, and the plan is the same for either kind of device, so that any batch size
can be bound anywhere.

Source: measured with MXNet 1.9.1: the GPU build prints the same plan totals for ``mx.cpu()``
and ``mx.gpu(0)``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

from dnnmem_tune.errors import MissingPackageError, UsageError, WorkloadError
from dnnmem_tune.frontends.base import RecordRequest
from dnnmem_tune.frontends.mxnet.bound import BoundGraph, parse_bound
from dnnmem_tune.frontends.mxnet.settings import Execution, Settings
from dnnmem_tune.frontends.torch.worker import Answer, loading_within, serve


def main() -> None:
    """Serve requests until standard input ends."""
    serve(_prepare)


def _prepare(setup: dict[str, Any]) -> Answer:
    # Fused graphs are oneDNN's, for CPUs; a GPU runs the graph as it is.
    os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE"
    os.environ["MXNET_MEM_PLAN_VERBOSE_LOGGING"] = "1"
    os.environ["MXNET_ENGINE_TYPE"] = "NaiveEngine"  # forked children must not miss threads
    release = _import_mxnet()
    from dnnmem_tune.frontends.mxnet.workloads import resolve

    with loading_within(setup["time_limit"]):
        make = resolve.load_network(setup["workload"])

    def answer(request: RecordRequest, _message: dict[str, Any]) -> dict[str, Any]:
        settings, params = Settings.split(request.params)
        if settings.mirror:
            os.environ["MXNET_BACKWARD_DO_MIRROR"] = "1"
        bound = _bind(make(params), settings, request.batch_size)
        return {"framework": f"mxnet {release}", **bound}

    return answer


def _import_mxnet() -> str:
    try:
        import numpy

        if int(numpy.__version__.partition(".")[0]) >= 2:
            raise MissingPackageError(
                f"MXNet 1.9.1 does not work with numpy {numpy.__version__} of {sys.executable}; "
                "run pip install 'numpy<2' there"
            )
        # numpy 1.24 dropped an alias that MXNet's modules use when they are imported.
        if "bool" not in vars(numpy):
            setattr(numpy, "bool", bool)  # noqa: B010  # a checker with a newer numpy refuses the plain form
        import mxnet
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"{sys.executable} has no package {error.name!r}, which the MXNet front-end needs; "
            "run pip install mxnet==1.9.1 numpy==1.23.5 there"
        ) from error
    return str(mxnet.__version__)


def _bind(network: Any, settings: Settings, batch_size: int) -> dict[str, Any]:
    """Return the bound graphs of a network, encoded, and the names of what a batch fills."""
    import mxnet

    dtype = "float32" if settings.precision == "fp32" else "float16"
    block, symbol = network.block, network.symbol
    if block is not None:
        if dtype != "float32":
            block.cast(dtype)
        names = list(network.shapes)
        symbol = block(*(mxnet.sym.var(name) for name in names))
    shapes = {name: (batch_size, *shape) for name, shape in network.shapes.items()}
    unknown = sorted(shapes.keys() - set(symbol.list_arguments()))
    if unknown:
        raise UsageError(
            f"the network has no input {unknown[0]!r}; "
            f"its arguments are {', '.join(symbol.list_arguments()[:8])}, ..."
        )
    labels = {name for name in symbol.list_arguments() if name.endswith("label")}
    inputs = set(shapes) | labels
    types = dict.fromkeys(network.shapes, dtype)
    if settings.training and settings.execution is Execution.EXECUTOR and not labels:
        symbol = mxnet.sym.SoftmaxOutput(symbol, mxnet.sym.var("label"), name="softmax")
        inputs.add("label")
        shapes["label"] = (batch_size,)
    graph = _graph_of(symbol, shapes, types, inputs, settings)
    loss = None
    if settings.training and settings.execution is not Execution.EXECUTOR and not labels:
        output = graph.entries[graph.outputs[0]].shape
        criterion = mxnet.gluon.loss.SoftmaxCrossEntropyLoss()
        loss_symbol = criterion(mxnet.sym.var("prediction"), mxnet.sym.var("label"))
        loss_shapes = {"prediction": output, "label": (batch_size, *output[1:-1])}
        loss = _graph_of(loss_symbol, loss_shapes, {"prediction": dtype, "label": "float32"}, {"label"}, settings)
        inputs.add("label")
    return {
        "network": graph.encode(),
        "loss": loss.encode() if loss is not None else None,
        "inputs": sorted(inputs),
    }


def _graph_of(
    symbol: Any,
    shapes: Mapping[str, tuple[int, ...]],
    types: Mapping[str, str],
    inputs: Iterable[str],
    settings: Settings,
) -> BoundGraph:
    import mxnet

    requests: Any = "null"
    if settings.training:
        requests = {name: "null" if name in inputs else settings.grad_req for name in symbol.list_arguments()}
    with _Log() as log:
        try:
            executor = symbol.simple_bind(mxnet.cpu(), grad_req=requests, type_dict=dict(types), **shapes)
        except (mxnet.base.MXNetError, RuntimeError, ValueError) as error:
            raise WorkloadError(f"MXNet cannot bind the network: {_reason(error)}") from error
        description = executor.debug_str()
    return parse_bound(
        log.text,
        description,
        num_forward_outputs=len(symbol.list_outputs()),
        auxiliary=symbol.list_auxiliary_states(),
    )


def _reason(error: Exception) -> str:
    """Return the line of MXNet's message that says what is wrong; its other lines are a stack and arguments."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [
        line for line in lines if "Error in operator" in line or "Check failed" in line or "unknown" in line
    ]
    return (telling or lines or [type(error).__name__])[-1]


class _Log:
    """What the process writes to its standard error meanwhile; MXNet's planner logs there, below Python."""

    def __enter__(self) -> _Log:
        self.text = ""
        sys.stderr.flush()
        self._file = tempfile.TemporaryFile()
        self._kept = os.dup(2)
        os.dup2(self._file.fileno(), 2)
        return self

    def __exit__(self, *_exception: object) -> None:
        os.dup2(self._kept, 2)
        os.close(self._kept)
        self._file.seek(0)
        self.text = self._file.read().decode(errors="replace")
        self._file.close()


if __name__ == "__main__":
    main()
