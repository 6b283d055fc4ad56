"""Words of attention, its cache and rotary positions: shaders/attention*.comp, rope*.comp, kv_append.comp."""

from __future__ import annotations

from typing import NamedTuple


class Attention(NamedTuple):
    """Heads, tokens and keys; first elements and steps of operands, result, mask and lengths; keys of a window."""

    batches: int
    kv_heads: int
    grouped: int
    tokens: int
    keys: int
    blocks: int
    splits: int
    scale: float
    q_first: int
    q_batch: int
    q_head: int
    q_row: int
    k_first: int
    k_batch: int
    k_head: int
    k_row: int
    v_first: int
    v_batch: int
    v_head: int
    v_row: int
    o_first: int
    o_batch: int
    o_head: int
    o_row: int
    m_first: int
    m_batch: int
    m_head: int
    m_row: int
    m_key: int
    l_first: int
    l_batch: int
    window: int


class AttentionConstants(NamedTuple):
    """Element types, what begins at multiples of four, what is hidden; a kernel's own constants follow."""

    threads: int
    width: int
    q_type: int
    o_type: int
    v_wide: int
    q_wide: int
    o_wide: int
    causal: int
    masked: int
    m_type: int
    lengths: int
    split: int
    windowed: int


class LanesConstants(NamedTuple):
    """Behind :class:`AttentionConstants`: invocations of a query, and those of a subgroup."""

    lanes: int
    warp: int


class CoresConstants(NamedTuple):
    """Behind :class:`AttentionConstants`: keys of a step, the invocations of a subgroup and the rows of its matrices.

    ``ahead``: registers hold queries, and what is loaded before it is needed; ``parts``: subgroups that share queries.
    """

    keys: int
    warp: int
    fm: int = 16
    ahead: int = 1
    parts: int = 1


class Combine(NamedTuple):
    """Parts of keys that are brought together."""

    rows: int
    heads: int
    tokens: int
    extent: int
    pitch: int
    w_first: int
    o_first: int
    o_batch: int
    o_head: int
    o_row: int


class CombineConstants(NamedTuple):
    """The work-group, its fours of a row, parts of keys; element type, whether rows begin at multiples of four."""

    threads: int
    quads: int
    splits: int
    o_type: int
    o_wide: int


class Rope(NamedTuple):
    """Rows that are turned, ``half_way`` pairs of each; where they come from and go; their positions."""

    rows: int
    heads: int
    tokens: int
    extent: int
    half_way: int
    x_first: int
    x_batch: int
    x_head: int
    x_token: int
    y_first: int
    y_batch: int
    y_head: int
    y_token: int
    p_first: int
    p_batch: int
    is_signed: int


class RopeConstants(NamedTuple):
    """Whether pairs lie half a row apart, and float32 stands in for halves."""

    neox: int
    y_full: int


class RopeAppend(NamedTuple):
    """Queries, keys and values of one product, turned, two appended; ``apart``: from a token's cache to the next."""

    heads: int
    kv_heads: int
    tokens: int
    extent: int
    half_way: int
    room: int
    pitch: int
    is_signed: int
    x_first: int
    x_token: int
    q_first: int
    q_head: int
    q_token: int
    p_first: int
    apart: int
    b_first: int = 0
    qw_first: int = 0
    kw_first: int = 0
    norm_eps: float = 0.0


class RopeAppendConstants(NamedTuple):
    """Whether pairs lie half a row apart, the cache's type, what begins at multiples of four; whether it has a base.

    Whether heads are normed, and the type of the weights.
    """

    neox: int
    c_type: int
    x_wide: int
    q_wide: int
    based: int = 0
    normed: int = 0
    w_type: int = 0
    qw_wide: int = 0
    kw_wide: int = 0


class Append(NamedTuple):
    """Keys and values appended to a cache of ``room`` tokens; ``each`` token has a position; ``apart``: see above."""

    heads: int
    tokens: int
    room: int
    extent: int
    pitch: int
    each: int
    p_first: int
    k_first: int
    k_head: int
    k_token: int
    v_first: int
    v_head: int
    v_token: int
    apart: int = 0
    b_first: int = 0


class AppendConstants(NamedTuple):
    """Element types of cache and values, whether these begin at multiples of four, and whether it has a base."""

    c_type: int
    v_wide: int
    v_type: int
    based: int = 0
