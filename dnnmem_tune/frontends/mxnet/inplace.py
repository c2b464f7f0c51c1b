"""Which operators may write an output over an input: MXNet's ``FInplaceOption``.

Source: the registrations in ``src/operator`` of MXNet 1.9.1. Operators that are not here
register none. ``tests/frontends/mxnet/programs/operator_plans.py`` binds a small graph with each
of some 110 operators, forward and backward, and compares the totals that MXNet prints.
"""

from __future__ import annotations

IDENTITIES = frozenset(
    {
        "Reshape", "Flatten", "expand_dims", "_copy", "_backward_copy", "_backward_reshape", "_np_copy",
        "_identity_with_attr_like_rhs", "reshape_like", "BlockGrad", "make_loss", "squeeze", "_backward_squeeze",
        "_np_reshape", "_npx_reshape", "_npi_squeeze", "_np_squeeze", "_backward_identity_with_attr_like_rhs",
    }
)  # fmt: skip
"""Operators whose output *is* their input; they share memory however many read it (``FInplaceIdentity``)."""

_UNARY = (
    "abs", "amp_cast", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "cbrt", "ceil", "cos",
    "cosh", "degrees", "erf", "erfinv", "exp", "expm1", "fix", "floor", "gamma", "gammaln", "log", "log10",
    "log1p", "log2", "logical_not", "negative", "radians", "rcbrt", "reciprocal", "relu", "rint", "round",
    "rsqrt", "sigmoid", "sign", "sin", "sinh", "softsign", "sqrt", "square", "tan", "tanh", "trunc",
    "hard_sigmoid", "smooth_l1", "Cast", "_plus_scalar", "_minus_scalar", "_rminus_scalar", "_mul_scalar",
    "_div_scalar", "_rdiv_scalar", "_mod_scalar", "_rmod_scalar", "_power_scalar", "_rpower_scalar",
    "_maximum_scalar", "_minimum_scalar", "_backward_mul_scalar", "_backward_div_scalar", "_backward_cast",
    "Activation", "LeakyReLU", "Dropout", "softmax", "log_softmax", "softmin", "SoftmaxOutput",
    "LinearRegressionOutput", "MAERegressionOutput", "LogisticRegressionOutput", "SVMOutput", "LayerNorm",
    "add_n", "SoftmaxActivation", "L2Normalization", "_scatter_plus_scalar", "_scatter_minus_scalar",
)  # fmt: skip

_BINARY = (
    "elemwise_add", "elemwise_sub", "elemwise_mul", "elemwise_div", "_grad_add", "_power", "_maximum",
    "_minimum", "_hypot", "_mod", "_equal", "_not_equal", "_greater", "_greater_equal", "_lesser",
    "_lesser_equal", "broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_div", "broadcast_maximum",
    "broadcast_minimum", "broadcast_power", "broadcast_equal", "broadcast_not_equal", "broadcast_greater",
    "broadcast_greater_equal", "broadcast_lesser", "broadcast_lesser_equal", "broadcast_logical_and",
    "broadcast_logical_or", "broadcast_logical_xor", "broadcast_hypot", "broadcast_mod", "_backward_abs",
    "_backward_cbrt", "_backward_cos", "_backward_cosh", "_backward_erf", "_backward_log", "_backward_log10",
    "_backward_log1p", "_backward_log2", "_backward_negative", "_backward_relu", "_backward_reciprocal",
    "_backward_rsqrt", "_backward_sigmoid", "_backward_sign", "_backward_sin", "_backward_sqrt",
    "_backward_square", "_backward_tan", "_backward_tanh", "_backward_expm1", "_backward_softsign",
    "_backward_smooth_l1", "_backward_softmax", "_backward_log_softmax",
)  # fmt: skip

IGNORED: dict[str, tuple[int, ...]] = {
    "ones_like": (0,),
    "zeros_like": (0,),
    "_identity_with_attr_like_rhs": (1,),
    "reshape_like": (1,),
}
"""Inputs of which an operator reads the shape only (``FIgnoreInputs``); the plan does not wait for it."""

_OTHERS: dict[str, tuple[tuple[int, int], ...]] = {
    "_backward_Activation": ((0, 0),),
    "_backward_LeakyReLU": ((0, 0),),
    "_backward_Dropout": ((0, 0),),
    "_backward_SoftmaxOutput": ((0, 0),),
    "_backward_LinearRegressionOutput": ((0, 0),),
    "_backward_LogisticRegressionOutput": ((0, 0),),
    "_backward_MAERegressionOutput": ((0, 0),),
    "_backward_FullyConnected": ((1, 0),),
    "_backward_add": ((0, 0), (0, 1)),
    "_backward_sub": ((0, 0), (0, 1)),
    "_backward_mul": ((0, 1),),
    "_backward_div": ((0, 1),),
}

INPLACE: dict[str, tuple[tuple[int, int], ...]] = {
    **dict.fromkeys(IDENTITIES, ((0, 0),)),
    **dict.fromkeys(_UNARY, ((0, 0),)),
    **dict.fromkeys(_BINARY, ((0, 0), (1, 0))),
    **_OTHERS,
}
"""Operator -> pairs of positions ``(input, output)``, in the order in which they are tried."""
