"""Whole models over a rig: arrays that are split over its ranks, weights of files, and plans of how to split them."""

from __future__ import annotations

from vkpar.parallel.attention import KVCache, ParallelAttention
from vkpar.parallel.feedforward import ParallelMLP
from vkpar.parallel.heads import split_heads
from vkpar.parallel.layers import (
    ColumnParallelLinear,
    ParallelEmbedding,
    RowParallelLinear,
)
from vkpar.parallel.lazy import LazyTensor
from vkpar.parallel.modules import Modules, parse_modules
from vkpar.parallel.norms import RMSNorm
from vkpar.parallel.plan import plan
from vkpar.parallel.planned import Plan
from vkpar.parallel.rules import Column, Mirrored, Only, Row, parallelize
from vkpar.parallel.sharded import Sharded
from vkpar.parallel.sharding import shard
from vkpar.parallel.spec import ModelSpec, spec_of
from vkpar.parallel.split import Split, linked, split
from vkpar.parallel.weights import Weights, open_weights

__all__ = [
    "Column",
    "ColumnParallelLinear",
    "KVCache",
    "LazyTensor",
    "Mirrored",
    "ModelSpec",
    "Modules",
    "Only",
    "ParallelAttention",
    "ParallelEmbedding",
    "ParallelMLP",
    "Plan",
    "RMSNorm",
    "Row",
    "RowParallelLinear",
    "Sharded",
    "Split",
    "Weights",
    "linked",
    "open_weights",
    "parallelize",
    "parse_modules",
    "plan",
    "shard",
    "spec_of",
    "split",
    "split_heads",
]
