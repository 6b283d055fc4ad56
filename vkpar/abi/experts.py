"""Words of the kernels of mixtures of experts, see shaders/expert_*.comp and shaders/common/expert_product.glsl."""

from __future__ import annotations

from typing import NamedTuple


class Route(NamedTuple):
    """Rows of logits, and how many experts of each are taken."""

    rows: int
    experts: int
    each: int
    logits_first: int
    choice_first: int


class RouteConstants(NamedTuple):
    """Whether the weights of the experts that are taken add up to 1."""

    normed: int


class Router(NamedTuple):
    """Rows, the router's matrix and a norm, from which logits are made; and how many experts of each are taken."""

    rows: int
    experts: int
    each: int
    k: int
    a_first: int
    a_row: int
    b_first: int
    norm_first: int
    logits_first: int
    choice_first: int
    eps: float


class RouterConstants(NamedTuple):
    """As above; then types and what lies at multiples of four, whether there is a norm; the size of subgroups."""

    normed: int
    a_type: int
    a_wide: int
    b_type: int
    b_wide: int
    folded: int
    n_type: int
    norm_wide: int
    span: int


class Groups(NamedTuple):
    """Pairs of a token and an expert that are sorted by expert, in tiles; the experts that a device has."""

    pairs: int
    first: int
    experts: int
    tiles: int
    choice_first: int
    groups_first: int


class GroupsConstants(NamedTuple):
    """Pairs of a tile."""

    tile: int


class Grouped(NamedTuple):
    """Products of rows by the matrices of their experts: ``share`` pairs take the same row."""

    pairs: int
    n: int
    k: int
    share: int
    first: int
    experts: int
    tiles: int
    a_first: int
    b_first: int
    o_first: int
    chosen_first: int
    scales_first: int = 0


class GroupedConstants(NamedTuple):
    """Element types, where elements lie at multiples of four; whether there are gates, and tiles."""

    a_type: int
    b_type: int
    o_type: int
    a_wide: int
    b_wide: int
    o_wide: int
    gated: int
    grouped: int


class BlockGroupedConstants(NamedTuple):
    """The same where matrices are quantised: their kind, where several share the module."""

    a_type: int
    kind_code: int
    o_type: int
    a_wide: int
    b_wide: int
    o_wide: int
    gated: int
    grouped: int


class Sum(NamedTuple):
    """Results of the experts of each token on their way into its row."""

    rows: int
    columns: int
    each: int
    first: int
    experts: int
    a_first: int
    o_first: int
    choice_first: int


class SumConstants(NamedTuple):
    """Element type, and where elements lie at multiples of four."""

    a_type: int
    a_wide: int
    o_wide: int
