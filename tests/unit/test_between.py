"""How long pieces of prompts are, and what is computed of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vkpar.ops.quantized import scratch
from vkpar.ops.tiles.cpu import ON_GPUS, Weights
from vkpar.parallel.plan import scratch as between
from vkpar.parallel.plan.scratch import Stored, Widths, batch_of, block_nbytes, most_rows, piece_rows, slices_nbytes

GIB = 1 << 30
SIZES = Widths(stream=1024, queries=1024, keys=256, inner=4096)
F32, HALF = 4, 2
PROCESSOR = Weights(halves=False, turned=False, lanes=False)
LAVAPIPE = Weights(halves=False, turned=True, lanes=True)


def device(nbytes: int, *, cpu: bool = False) -> Any:
    info = SimpleNamespace(
        is_cpu=cpu,
        heaps=[SimpleNamespace(nbytes=nbytes, device_local=True)],
        memory_types=((("DEVICE_LOCAL"), 0),),
    )
    return SimpleNamespace(info=info)


def test_large_gpus_take_long_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between, "heap_of", lambda info, kind: 0)
    assert batch_of([device(140 * GIB), device(48 * GIB)]) == 2048
    assert batch_of([device(140 * GIB), device(8 * GIB)]) == 512
    assert batch_of([device(140 * GIB), device(140 * GIB, cpu=True)]) == 512


@pytest.mark.parametrize("tokens", [1, 100, 512, 2048, 100_000])
def test_pieces_of_one_stage_are_as_long_as_can_be(tokens: int) -> None:
    assert piece_rows(tokens, 1, 2048) == 2048


@pytest.mark.parametrize("stages", [2, 3, 8])
def test_pieces_keep_several_stages_busy(stages: int) -> None:
    lengths = [piece_rows(tokens, stages, 2048) for tokens in (1, 512, 2048, 16_384, 1 << 20)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 128
    assert lengths[-1] == 2048
    assert all(length % 64 == 0 for length in lengths)
    assert -(-2048 // lengths[2]) >= min(stages, 7), "most have something to do"
    assert piece_rows(2048, stages, 2048) >= piece_rows(2048, stages + 1, 2048)
    assert piece_rows(500, stages, 12) == 12, "never more than asked for"


@pytest.mark.parametrize(
    ("unpacks", "times"),
    [
        (False, {128: 11.0, 256: 17.8, 512: 28.5, 1024: 52.9, 2048: 106.5}),
        (True, {128: 22.8, 256: 28.9, 512: 38.6, 1024: 65.3, 2048: 120.0}),
    ],
)
@pytest.mark.parametrize("stages", [2, 4])
def test_pieces_are_near_the_best_of_what_was_measured(stages: int, times: dict[int, float], *, unpacks: bool) -> None:
    """Of the milliseconds that pieces of an 8B shape took an H200: a stage has its share of them."""
    for tokens in (256, 512, 1024, 2048, 4096):
        turns = {rows: -(-tokens // rows) + stages - 1 for rows in times if rows <= tokens}
        took = {rows: count * times[rows] / stages for rows, count in turns.items()}
        rows = piece_rows(tokens, stages, 2048, unpacks=unpacks)
        near = min(times, key=lambda other: abs(other - rows))
        assert took[near] <= 1.12 * min(took.values())


def test_a_short_prompt_of_quantised_weights_over_two_stages_stays_whole() -> None:
    assert piece_rows(512, 2, 2048, unpacks=True) == 512
    assert piece_rows(512, 2, 2048) == 256
    assert piece_rows(2048, 2, 2048, unpacks=True) == 1024


@pytest.mark.parametrize("unpacks", [False, True])
@pytest.mark.parametrize("tokens", [512, 1024, 2048, 4096, 8192])
def test_round_lengths_come_in_pieces_of_one_length(tokens: int, *, unpacks: bool) -> None:
    """So that all of them run by one graph."""
    assert tokens % piece_rows(tokens, 2, 2048, unpacks=unpacks) == 0


@pytest.mark.parametrize("unpacks", [False, True])
@pytest.mark.parametrize(("stages", "batch"), [(2, 512), (2, 2048), (5, 512)])
def test_plans_know_the_longest_piece_of_any_prompt(stages: int, batch: int, *, unpacks: bool) -> None:
    most = 0
    for context in range(1, 3000):
        most = max(most, min(context, piece_rows(context, stages, batch, unpacks=unpacks)))
        if context % 97 == 0:
            assert most_rows(context, stages, batch, unpacks=unpacks) == most
    assert most_rows(1 << 24, stages, batch, unpacks=unpacks) == batch


@pytest.mark.parametrize("unpacks", [False, True])
@pytest.mark.parametrize("stages", [2, 3, 8])
@pytest.mark.parametrize("tokens", [512, 1000, 2048, 5000, 16_384])
def test_pieces_are_near_the_best(tokens: int, stages: int, *, unpacks: bool) -> None:
    """Of turns of as many rows as a piece has, and fixed ones; rows come in sixty-fours."""
    fixed = between._FIXED + between._UNPACKING * unpacks

    def cost(rows: int) -> int:
        return (-(-tokens // rows) + stages - 1) * (rows + fixed)

    best = min(map(cost, range(128, 2049)))
    assert cost(piece_rows(tokens, stages, 2048, unpacks=unpacks)) <= 1.15 * best


def test_quantised_weights_ask_for_longer_pieces() -> None:
    assert piece_rows(2048, 2, 2048, unpacks=True) > piece_rows(2048, 2, 2048)


def test_scratch_has_few_sizes() -> None:
    """Those of an 8B shape's matrices: what one product drops serves the next."""
    stored = Stored(halves=True, quantized=True)
    shapes = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    assert len({size for outputs, inputs in shapes for size in stored.made(512, outputs, inputs)}) == 2
    assert all(HALF * 1000 * 1024 <= size <= scratch.SLAB for size in stored.made(512, 1000, 1024))


def test_a_block_holds_what_is_alive_at_once() -> None:
    """Counted by hand: the stream, its norm, both anew, a sum; what heads make, and what is inside the block."""
    rows = 512
    alive = 5 * 1024 + (1024 + 512) + (1024 + 256) + 1024 + 2 * 4096 + 4096
    assert block_nbytes(SIZES, rows, Stored()) == rows * F32 * alive


def test_halves_take_less_for_many_rows_alone() -> None:
    halves = Stored(halves=True, table=HALF)
    rows = 512
    rounded = 1024 + 4096  # inputs of products
    alive = F32 * (5 * 1024 + 3 * 4096) + HALF * ((1024 + 512) + (1024 + 256) + rounded)
    assert block_nbytes(SIZES, rows, halves) == rows * alive
    assert block_nbytes(SIZES, 1, halves) >= block_nbytes(SIZES, 1, Stored())


def test_quantised_weights_are_unpacked_in_slabs() -> None:
    rows = 512
    plain = block_nbytes(SIZES, rows, Stored(halves=True))
    unpacked = block_nbytes(SIZES, rows, Stored(halves=True, quantized=True))
    weights = HALF * 1024 * ((1024 + 2 * 256) + 1024 + 2 * 4096 + 4096)
    assert 0 < unpacked - plain <= weights
    large = Widths(8192, 8192, 1024, 28672)
    more = block_nbytes(large, rows, Stored(halves=True, quantized=True)) - block_nbytes(
        large, rows, Stored(halves=True)
    )
    assert more <= 8 * (64 << 20), "two slabs at a time of each size"


@pytest.mark.parametrize("halves", [False, True])
def test_gpus_unpack_large_pieces_whatever_inputs_are_rounded_to(*, halves: bool) -> None:
    """As products do: a cache of float32, or inputs that keep their type, leave a GPU its pieces of 64 MiB."""
    gpu = Stored(halves=halves, quantized=True)
    processor = gpu._replace(halves=False, device=PROCESSOR)
    large = 14_336, 4096
    assert max(gpu.made(512, *large)) == scratch.SLAB
    assert max(processor.made(512, *large)) == 8 << 20
    assert gpu.made(8, *large) == [], "a GPU's kernel reads few rows' weights as they are"
    assert processor.made(8, *large) == processor.made(512, *large)
    assert gpu.device == ON_GPUS


def test_the_first_rank_of_a_row_split_holds_parts_too() -> None:
    whole = block_nbytes(SIZES, 512, Stored())
    assert block_nbytes(SIZES._replace(share=0.5), 512, Stored()) > whole
    assert 0 < slices_nbytes(SIZES, 0.25, 512, Stored()) < slices_nbytes(SIZES, 0.75, 512, Stored()) < whole


def test_copies_of_transposed_weights_count_where_products_take_them() -> None:
    plain, turned = Stored(), Stored(device=LAVAPIPE)
    assert turned.made(96, 256, 1024) == [0, 256 * 1024 * F32]
    assert turned.made(15, 4096, 4096) == [0, 0]  # of few rows none is worth it
    assert turned.made(96, 0, 1024) == turned.made(96, 256, 0) == []
    assert block_nbytes(SIZES, 512, turned) > block_nbytes(SIZES, 512, plain)
    assert block_nbytes(SIZES, 1, turned) == block_nbytes(SIZES, 1, plain)
    halves = Stored(widened=True, device=LAVAPIPE)
    assert halves.made(96, 256, 1024) == [256 * 1024 * F32, 256 * 1024 * HALF]
