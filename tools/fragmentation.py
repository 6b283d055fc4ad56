#!/usr/bin/env python3
"""Run random traffic through the allocator's arithmetic and print how much of its blocks lies idle; needs no Vulkan."""

from __future__ import annotations

import random
from collections.abc import Iterator

from vkpar.vulkan.memory import pool
from vkpar.vulkan.memory.pool import Piece, Pool, padded

TURNS, SEEDS = 20_000, 4
TRAFFIC = ((4, 16, 2000), (4, 24, 300), (10, 22, 300), (4, 25, 1000))  # sizes from and to, as powers of two; pieces


def idle_shares(low: int, high: int, pieces: int, seed: int) -> Iterator[float]:
    """Yield the idle share of the blocks in use, once the number of pieces has settled."""
    rng, held, used = random.Random(seed), list[Piece](), 0
    blocks = Pool(1 << 40, lambda nbytes, _: nbytes, lambda _: None)
    for turn in range(TURNS):
        if rng.random() < len(held) / (2 * pieces):
            piece = held.pop(rng.randrange(len(held)))
            blocks.give(piece)
            used -= piece.nbytes
        else:
            held.append(blocks.take(padded(int(2 ** rng.uniform(low, high))), "device"))
            used += held[-1].nbytes
        if turn > TURNS // 2 and turn % 20 == 0:
            yield 1 - used / sum(block.nbytes for block in blocks.blocks() if not block.free.empty)


def main() -> None:
    """Print a row per kind of traffic, for the classes there are and for one class alone."""
    several = pool.SIZE_CLASSES
    print("| sizes | pieces | idle: mean, most | one class: mean, most |")
    print("| --- | --- | --- | --- |")
    for low, high, pieces in TRAFFIC:
        cells = []
        for classes in (several, several[-1:]):
            pool.SIZE_CLASSES = classes
            shares = [share for seed in range(SEEDS) for share in idle_shares(low, high, pieces, seed)]
            cells.append(f"{sum(shares) / len(shares):.0%}, {max(shares):.0%}")
        print(f"| 2^{low} to 2^{high} bytes | {pieces} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
