"""Operations on arrays of one device: asynchronous, in program order, checked before anything is submitted."""

from __future__ import annotations

from vkpar.arrays.operators import operations
from vkpar.ops.arrays.join import concatenate, split, stack
from vkpar.ops.arrays.making import arange, assign, fill, full, in_place, linspace, move, packed
from vkpar.ops.arrays.recipes import (
    empty_like,
    expand_dims,
    eye,
    flip,
    full_like,
    ones_like,
    pad,
    repeat,
    roll,
    squeeze,
    tile,
    tril,
    triu,
    zeros_like,
)
from vkpar.ops.arrays.shapes import broadcast_to, contiguous, transpose
from vkpar.ops.arrays.take import take
from vkpar.ops.attention.attention import attention
from vkpar.ops.attention.kvcache import KVCache
from vkpar.ops.call import documents
from vkpar.ops.elementwise.add import add
from vkpar.ops.elementwise.cast import cast
from vkpar.ops.elementwise.functions import (
    abs,
    divide,
    equal,
    exp,
    gelu,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    log,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    pow,
    relu,
    rsqrt,
    sigmoid,
    silu,
    sqrt,
    subtract,
    tanh,
    where,
)
from vkpar.ops.elementwise.mathematics import (
    arccos,
    arcsin,
    arctan,
    arctan2,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    ceil,
    clip,
    cos,
    cosh,
    erf,
    exp2,
    expm1,
    floor,
    floor_divide,
    hypot,
    invert,
    left_shift,
    log1p,
    log2,
    log10,
    mod,
    reciprocal,
    right_shift,
    round,
    sign,
    sin,
    sinh,
    square,
    tan,
    trunc,
)
from vkpar.ops.matmul.convolution import avg_pool2d, conv2d, max_pool2d
from vkpar.ops.matmul.einsum import einsum, outer
from vkpar.ops.matmul.matmul import matmul
from vkpar.ops.quantized.weights import Quantized, quantized
from vkpar.ops.reduce import picking as _picking  # noqa: F401  (what a[mask] is)
from vkpar.ops.reduce.reductions import argmax, argmin, max, mean, min, sum
from vkpar.ops.reduce.scans import cumprod, cumsum
from vkpar.ops.reduce.scatter import scatter_add
from vkpar.ops.reduce.selecting import topk
from vkpar.ops.reduce.sorting import argsort, nonzero, one_hot, sort, take_along_axis
from vkpar.ops.reduce.statistics import all, any, count_nonzero, logsumexp, norm, prod
from vkpar.ops.rows.moments import std, var
from vkpar.ops.rows.norm_grads import layer_norm_grad, rms_norm_grad
from vkpar.ops.rows.normed import Normed
from vkpar.ops.rows.norms import layer_norm, rms_norm
from vkpar.ops.rows.rope import rope
from vkpar.ops.rows.softmax import cross_entropy, cross_entropy_grad, log_softmax, softmax
from vkpar.ops.rows.swiglu import swiglu

# What the operators and methods of arrays, which lie below, call.
operations.update(add=add, subtract=subtract, multiply=multiply, divide=divide, pow=pow, matmul=matmul)
operations.update(negative=negative, abs=abs, cast=cast, fill=fill, assign=assign, arange=arange)
operations.update(in_place=in_place, move=move, packed=packed)
operations.update(mod=mod, floor_divide=floor_divide, bitwise_and=bitwise_and, bitwise_or=bitwise_or)
operations.update(bitwise_xor=bitwise_xor, invert=invert, left_shift=left_shift, right_shift=right_shift)
operations.update(clip=clip, round=round, repeat=repeat)
operations.update(equal=equal, not_equal=not_equal, less=less, less_equal=less_equal)
operations.update(greater=greater, greater_equal=greater_equal)

# What their docstrings have in common.
documents.by_element((
    arccos, arcsin, arctan, arctan2, cos, cosh, divide, erf, exp, exp2, expm1, hypot, log, log1p, log2, log10, pow,
    reciprocal, rsqrt, sigmoid, silu, sin, sinh, sqrt, tan, tanh,
), documents.FLOATS)  # fmt: skip
documents.by_element((
    ceil, floor, isfinite, isinf, isnan, logical_and, logical_or, logical_xor, relu, round, sign, square, trunc,
), f"{documents.FLOATS}, {documents.WHOLE}, bool")  # fmt: skip
documents.by_element((
    abs, equal, floor_divide, greater, greater_equal, less, less_equal, logical_not, maximum, minimum, mod, multiply,
    not_equal,
), f"{documents.FLOATS}, {documents.WHOLE}, bool; {documents.LONG}")  # fmt: skip
documents.by_element((negative, subtract), f"{documents.FLOATS}, {documents.WHOLE}; {documents.LONG}")
documents.by_element(
    (bitwise_and, bitwise_or, bitwise_xor, invert, left_shift, right_shift),
    f"{documents.WHOLE}, bool; int64, uint64 where the device computes them",
)
for _functions, _other in (
    ((mean, max, min, prod, any, all, count_nonzero, logsumexp), sum),
    ((argmin,), argmax),
    ((std,), var),
    ((cumprod,), cumsum),
    ((argsort,), sort),
    ((log_softmax,), softmax),
    ((triu,), tril),
    ((avg_pool2d,), max_pool2d),
    ((rms_norm_grad,), layer_norm_grad),
    ((full_like, zeros_like, ones_like), empty_like),
):
    documents.alike(_functions, _other)

__all__ = [
    "KVCache",
    "Normed",
    "Quantized",
    "abs",
    "add",
    "all",
    "any",
    "arange",
    "arccos",
    "arcsin",
    "arctan",
    "arctan2",
    "argmax",
    "argmin",
    "argsort",
    "attention",
    "avg_pool2d",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "broadcast_to",
    "cast",
    "ceil",
    "clip",
    "concatenate",
    "contiguous",
    "conv2d",
    "cos",
    "cosh",
    "count_nonzero",
    "cross_entropy",
    "cross_entropy_grad",
    "cumprod",
    "cumsum",
    "divide",
    "einsum",
    "empty_like",
    "equal",
    "erf",
    "exp",
    "exp2",
    "expand_dims",
    "expm1",
    "eye",
    "flip",
    "floor",
    "floor_divide",
    "full",
    "full_like",
    "gelu",
    "greater",
    "greater_equal",
    "hypot",
    "invert",
    "isfinite",
    "isinf",
    "isnan",
    "layer_norm",
    "layer_norm_grad",
    "left_shift",
    "less",
    "less_equal",
    "linspace",
    "log",
    "log1p",
    "log2",
    "log10",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "matmul",
    "max",
    "max_pool2d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mod",
    "multiply",
    "negative",
    "nonzero",
    "norm",
    "not_equal",
    "one_hot",
    "ones_like",
    "outer",
    "pad",
    "pow",
    "prod",
    "quantized",
    "reciprocal",
    "relu",
    "repeat",
    "right_shift",
    "rms_norm",
    "rms_norm_grad",
    "roll",
    "rope",
    "round",
    "rsqrt",
    "scatter_add",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "softmax",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "swiglu",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tile",
    "topk",
    "transpose",
    "tril",
    "triu",
    "trunc",
    "var",
    "where",
    "zeros_like",
]
