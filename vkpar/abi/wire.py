"""Words of the wire kernels: shaders/common/reduce.glsl, wire_*.comp, slot_check.comp, carry.comp."""

from __future__ import annotations

from typing import NamedTuple

from vkpar.abi.words import Words2, Words16


class Reduce(NamedTuple):
    """A segment that is summed: its elements, where it lies, slots, flags."""

    count_: int
    first_block: int
    source_at: int
    target_at: int
    tail: int
    out_slot: int
    factor: Words2
    slots: Words16
    awaits: int = 0
    sends: int = 0


class Adds(NamedTuple):
    """Behind :class:`Reduce`: what is added to the sum, and where the total goes."""

    addend_at: int
    total_at: int


class Forward(NamedTuple):
    """A segment that goes on as it came."""

    count_: int
    first_block: int
    target_at: int
    tail: int
    in_slot: int
    out_slot: int


class ReduceConstants(NamedTuple):
    """Sources, what is written, the operation, in which order; where the rank's own term comes."""

    sources: int
    has_own: int
    to_array: int
    to_slot: int
    op: int
    average: int
    order: int
    own_at: int


class ForwardConstants(NamedTuple):
    """What is written."""

    to_array: int
    to_slot: int


class Carry(NamedTuple):
    """Flags between cards: what is ready on each lane, in two bits, and what is waited for."""

    sends: int
    arrivals: Words16


class SlotCheck(NamedTuple):
    """Stamps of slots, as pairs of a word and a generation, that are written or compared."""

    write: int
    report: int
    count_: int
    pad: int
    pairs: Words16
