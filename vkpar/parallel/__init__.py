"""Whole models over a rig: arrays that are split over its ranks, weights of files, and plans of how to split them."""

from __future__ import annotations

from vkpar.parallel.cut.heads import split_heads
from vkpar.parallel.cut.modules import Modules, parse_modules
from vkpar.parallel.cut.rules import Column, Mirrored, Only, Row, parallelize
from vkpar.parallel.cut.sharded import Sharded
from vkpar.parallel.cut.sharding import shard
from vkpar.parallel.cut.split import Split, linked, split
from vkpar.parallel.files.lazy import LazyTensor
from vkpar.parallel.files.weights import Weights, open_weights
from vkpar.parallel.layers.attention import KVCache, ParallelAttention
from vkpar.parallel.layers.embedding import ParallelEmbedding
from vkpar.parallel.layers.experts import Experts, MixtureOfExperts
from vkpar.parallel.layers.feedforward import ParallelMLP, SharedExpert
from vkpar.parallel.layers.layers import ColumnParallelLinear, RowParallelLinear
from vkpar.parallel.layers.norms import RMSNorm
from vkpar.parallel.plan.plan import plan
from vkpar.parallel.plan.report import Plan
from vkpar.parallel.plan.sources import spec_of
from vkpar.parallel.plan.spec import ModelSpec

__all__ = [
    "Column",
    "ColumnParallelLinear",
    "Experts",
    "KVCache",
    "LazyTensor",
    "Mirrored",
    "MixtureOfExperts",
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
    "SharedExpert",
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
