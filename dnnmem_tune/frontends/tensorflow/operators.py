"""What TensorFlow's GPU kernels do with memory beyond writing new outputs. No framework is imported.

Most kernels allocate each output (``allocate_output``) and nothing else. The tables say which hand
an input's buffer on, which share it, and which outputs never reach the GPU. Files are below
``tensorflow/core/kernels`` of release 2.21 unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable

ALIASES = frozenset(
    {
        # ``set_output(0, input)``, or a Tensor that shares the buffer under another shape.
        "Bitcast",
        "CheckNumerics",
        "EnsureShape",
        "ExpandDims",
        "Enter",
        "Exit",
        "Identity",
        "IdentityN",
        "Merge",
        "PreventGradient",
        "Reshape",
        "Snapshot",
        "Squeeze",
        "StopGradient",
        "Switch",
    }
)
"""Output ``k`` lies in the buffer of input ``k``.

Source: ``identity_op.h``, ``reshape_op.h``, ``shape_ops.h``, ``control_flow_ops.cc``.
"""

_FIRST = ((0, 0),)
_EITHER = ((0, 0), (0, 1))

_BINARY = """Add AddV2 Atan2 Div DivNoNan FloorDiv FloorMod LogicalAnd LogicalOr Maximum Minimum Mod Mul MulNoNan
Pow RealDiv SquaredDifference Sub TruncateDiv Xdivy Xlogy RsqrtGrad SqrtGrad TanhGrad SigmoidGrad
ReciprocalGrad InvGrad BitwiseAnd BitwiseOr BitwiseXor Igamma NextAfter"""
_UNARY = """Abs Acos Asin Atan Ceil Cos Digamma Erf Erfc Exp Expm1 Floor Inv Lgamma Log Log1p LogicalNot Neg
Reciprocal Rint Round Rsqrt Sigmoid Sign Sin Sqrt Square Tan Tanh Sinh Cosh Invert"""
_ACTIVATIONS = "Relu Relu6 LeakyRelu Elu Selu Softplus Softsign ReluGrad Relu6Grad LeakyReluGrad EluGrad SeluGrad"

FORWARDS: dict[str, tuple[tuple[int, int], ...]] = {
    # cwise_ops_common.h: ``forward_input_or_allocate_output`` for both inputs, or the one.
    **dict.fromkeys(_BINARY.split(), _EITHER),
    **dict.fromkeys(_UNARY.split(), _FIRST),
    # relu_op.h, bias_op.cc, softmax_op_gpu.cu.cc
    **dict.fromkeys(_ACTIVATIONS.split(), _FIRST),
    "BiasAdd": _FIRST,
    "ClipByValue": _FIRST,
    "LogSoftmax": _FIRST,
    "Select": ((0, 1), (0, 2)),
    "SelectV2": ((0, 1), (0, 2)),
    "Softmax": _FIRST,
    # xent_op.cc, sparse_xent_op.cc: the gradient lies where the logits lay.
    "SoftmaxCrossEntropyWithLogits": ((1, 0),),
    "SparseSoftmaxCrossEntropyWithLogits": ((1, 0),),
    "TensorScatterUpdate": _FIRST,
    "TensorScatterAdd": _FIRST,
    # fused_batch_norm_op.cc: the side input.
    "_FusedBatchNormEx": ((0, 5),),
}
"""Kind -> pairs (output, input): whose buffer an output may take over, in the order in which they are tried."""

FORWARDS_ANY_INPUT = frozenset({"AddN", "AccumulateNV2"})
"""As ``FORWARDS``, with every input. Source: ``aggregate_ops.cc``."""

HOST_OUTPUTS = frozenset(
    {
        "BroadcastArgs",
        "BroadcastGradientArgs",
        "ConcatOffset",
        "InvertPermutation",
        "Range",
        "Rank",
        "Shape",
        "ShapeN",
        "Size",
        "TensorListLength",
        "VarIsInitializedOp",
    }
)
"""Kinds registered with ``HostMemory`` outputs on GPUs: shapes and what is computed from them."""

_SPARSE_UPDATES = ("ResourceScatter", "ResourceSparseApply")

WITHOUT_OUTPUT_MEMORY = frozenset({"VarHandleOp", "ReadVariableOp", "NoOp", "Placeholder"})
"""Handles and reads of a variable, which share its buffer (``resource_variable_ops.cc``)."""


def forwards(kind: str, num_inputs: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs (output, input) of which the output may take over the input's buffer."""
    if kind in FORWARDS_ANY_INPUT:
        return tuple((0, given) for given in range(num_inputs))
    return tuple((output, given) for output, given in FORWARDS.get(kind, ()) if given < num_inputs)


def copies_on_read(kinds_that_use_it: Iterable[str]) -> bool:
    """Say whether reads of a variable make a copy.

    A variable that a sparse update writes in place is in copy-on-read mode from then on.

    Source: ``PrepareToUpdateVariable`` and ``EnsureSparseVariableAccess`` in
    ``training_op_helpers.h``; ``ReadVariableOp::Compute`` in ``resource_variable_ops.cc``.
    """
    return any(kind.startswith(_SPARSE_UPDATES) for kind in kinds_that_use_it)
