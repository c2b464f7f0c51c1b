"""Binds a small graph around each operator and prints the plan's total, as MXNet says and as we do, in JSON lines.

Run under the interpreter that has MXNet. Entries have 16 MiB, so that one block more or less shows in totals that
MXNet prints in whole mebibytes.
"""

from __future__ import annotations

import json
import os

os.environ["MXNET_MEM_PLAN_VERBOSE_LOGGING"] = "1"
os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE"

import mxnet as mx

from dnnmem_tune.frontends.mxnet.bound import parse_bound
from dnnmem_tune.frontends.mxnet.plan import executor_plan
from dnnmem_tune.frontends.mxnet.worker import _Log

S = mx.sym
SHAPE = (1024, 4096)

NAMED = [
    "abs",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctanh",
    "cbrt",
    "ceil",
    "cos",
    "cosh",
    "degrees",
    "erf",
    "erfinv",
    "exp",
    "expm1",
    "fix",
    "floor",
    "gamma",
    "gammaln",
    "log",
    "log10",
    "log1p",
    "log2",
    "logical_not",
    "negative",
    "radians",
    "rcbrt",
    "reciprocal",
    "relu",
    "rint",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "softsign",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
    "hard_sigmoid",
    "smooth_l1",
    "softmax",
    "log_softmax",
    "softmin",
    "SoftmaxActivation",
    "L2Normalization",
    "BlockGrad",
    "make_loss",
    "identity",
    "ones_like",
    "zeros_like",
]

WRITTEN = {
    "plus scalar": lambda a: a + 1,
    "scalar minus": lambda a: 1 - a,
    "times scalar": lambda a: a * 2,
    "by scalar": lambda a: a / 2,
    "scalar by": lambda a: 2 / a,
    "power scalar": lambda a: a**2,
    "maximum scalar": lambda a: S.maximum(a, 0.5),
    "minimum scalar": lambda a: S.minimum(a, 0.5),
    "Cast": lambda a: S.Cast(a, dtype="float16"),
    "amp_cast": lambda a: S.amp_cast(a, dtype="float16"),
    **{f"Activation {kind}": lambda a, kind=kind: S.Activation(a, act_type=kind) for kind in
       ("relu", "tanh", "sigmoid", "softrelu", "softsign")},
    **{f"LeakyReLU {kind}": lambda a, kind=kind: S.LeakyReLU(a, act_type=kind) for kind in
       ("leaky", "elu", "gelu", "prelu")},
    "clip": lambda a: S.clip(a, 0, 2),
    "Dropout": S.Dropout,
    "LayerNorm": S.LayerNorm,
    "BatchNorm": S.BatchNorm,
    "InstanceNorm": lambda a: S.InstanceNorm(S.reshape(a, (0, 16, -1))),
    "GroupNorm": lambda a: S.GroupNorm(S.reshape(a, (0, 16, -1)), num_groups=4),
    "transpose": S.transpose,
    "flatten": S.flatten,
    "expand_dims": lambda a: S.expand_dims(a, 0),
    "squeeze": lambda a: S.squeeze(S.expand_dims(a, 0)),
    "sum": lambda a: S.sum(a, axis=1),
    "mean": lambda a: S.mean(a, axis=1),
    "slice_axis": lambda a: S.slice_axis(a, axis=0, begin=0, end=512),
    "SwapAxis": lambda a: S.swapaxes(a, 0, 1),
    "Concat": lambda a: S.concat(a, a * 2),
    "SliceChannel": lambda a: S.concat(*S.split(a, 2, axis=1), dim=0),
    "swish": lambda a: a * S.sigmoid(a),
    "residual": lambda a: S.Activation(a + S.tanh(a), act_type="relu"),
    "tile": lambda a: S.tile(a, (2, 1)),
    "FullyConnected": lambda a: S.FullyConnected(a, num_hidden=4096),
}  # fmt: skip

BINARY = [
    "elemwise_add",
    "elemwise_sub",
    "elemwise_mul",
    "elemwise_div",
    "broadcast_add",
    "broadcast_sub",
    "broadcast_mul",
    "broadcast_div",
    "broadcast_maximum",
    "broadcast_minimum",
    "broadcast_power",
    "broadcast_hypot",
    "broadcast_mod",
    "broadcast_equal",
    "broadcast_greater",
    "broadcast_lesser_equal",
    "broadcast_logical_and",
    "add_n",
]


def before(name: str) -> mx.sym.Symbol:
    """Return an entry of the plan that only the operator reads; ``clip`` never works in place."""
    return S.clip(S.var(name), 0, 1)


def compare(name: str, output: mx.sym.Symbol, **shapes: tuple[int, ...]) -> None:
    """Print both totals, without gradients and with them."""
    symbol = S.clip(S.clip(output, 0, 1), 0, 1)
    for request in ("null", "write"):
        with _Log() as log:
            executor = symbol.simple_bind(mx.cpu(), grad_req=request, **shapes)
            description = executor.debug_str()
        graph = parse_bound(log.text, description, num_forward_outputs=1, auxiliary=symbol.list_auxiliary_states())
        ours = sum(executor_plan(graph).planned_bytes) >> 20
        print(json.dumps([name, request, ours, graph.total_mebibytes]))


for name in NAMED:
    compare(name, getattr(S, name)(before("data")), data=SHAPE)
for name, operator in WRITTEN.items():
    compare(name, operator(before("data")), data=SHAPE)
for name in BINARY:
    operator = getattr(S, name)
    compare(name, operator(before("data"), before("other")), data=SHAPE, other=SHAPE)
    if name.startswith("broadcast"):
        compare(f"{name} row", operator(before("data"), before("other")), data=SHAPE, other=(1, SHAPE[1]))
