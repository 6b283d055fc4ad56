"""Operations on arrays of one device: asynchronous, in program order, checked before anything is submitted."""

from __future__ import annotations

from vkpar.arrays.operators import operations
from vkpar.ops.arrays.join import concatenate, split, stack
from vkpar.ops.arrays.making import arange, assign, fill, full, in_place, move, packed
from vkpar.ops.arrays.shapes import broadcast_to, contiguous, transpose
from vkpar.ops.arrays.take import take
from vkpar.ops.attention.attention import attention
from vkpar.ops.attention.kvcache import KVCache
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
    less,
    less_equal,
    log,
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
from vkpar.ops.matmul.matmul import matmul
from vkpar.ops.quantized.weights import Quantized, quantized
from vkpar.ops.reduce.reductions import argmax, argmin, max, mean, min, sum
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
operations.update(equal=equal, not_equal=not_equal, less=less, less_equal=less_equal)
operations.update(greater=greater, greater_equal=greater_equal)

__all__ = [
    "KVCache",
    "Normed",
    "Quantized",
    "abs",
    "add",
    "arange",
    "argmax",
    "argmin",
    "attention",
    "broadcast_to",
    "cast",
    "concatenate",
    "contiguous",
    "cross_entropy",
    "cross_entropy_grad",
    "divide",
    "equal",
    "exp",
    "full",
    "gelu",
    "greater",
    "greater_equal",
    "layer_norm",
    "layer_norm_grad",
    "less",
    "less_equal",
    "log",
    "log_softmax",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "negative",
    "not_equal",
    "pow",
    "quantized",
    "relu",
    "rms_norm",
    "rms_norm_grad",
    "rope",
    "rsqrt",
    "sigmoid",
    "silu",
    "softmax",
    "split",
    "sqrt",
    "stack",
    "subtract",
    "sum",
    "swiglu",
    "take",
    "tanh",
    "transpose",
    "where",
]
