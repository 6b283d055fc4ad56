"""Operations on arrays of one device: asynchronous, in program order, checked before anything is submitted."""

from __future__ import annotations

from vkpar.ops.cast import cast
from vkpar.ops.elementwise import add
from vkpar.ops.matmul import matmul
from vkpar.ops.norm_grads import layer_norm_grad, rms_norm_grad
from vkpar.ops.norms import layer_norm, rms_norm
from vkpar.ops.reductions import argmax, argmin, max, mean, min, sum
from vkpar.ops.shapes import broadcast_to, transpose
from vkpar.ops.softmax import cross_entropy, cross_entropy_grad, log_softmax, softmax
from vkpar.ops.swiglu import swiglu

__all__ = [
    "add",
    "argmax",
    "argmin",
    "broadcast_to",
    "cast",
    "cross_entropy",
    "cross_entropy_grad",
    "layer_norm",
    "layer_norm_grad",
    "log_softmax",
    "matmul",
    "max",
    "mean",
    "min",
    "rms_norm",
    "rms_norm_grad",
    "softmax",
    "sum",
    "swiglu",
    "transpose",
]
