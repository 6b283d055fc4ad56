"""How arrays are cut into chunks and segments, and how the steps of several segments follow each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from vkpar.comm.schedule.steps import BLOCK, Problem, Span, Step

Stages = Sequence[Sequence[Step]]  # of one segment, one after the other; a stage has steps of several ranks


def owned(problem: Problem) -> list[Span]:
    """Return the chunk that each rank owns; a chunk may be empty."""
    return chunks(problem.count, problem.nranks, problem.shares) if problem.parts is None else list(problem.parts)


def chunks(count: int, nranks: int, shares: Sequence[float] | None = None) -> list[Span]:
    """Cut ``count`` elements into one span per rank; some may be empty.

    Without ``shares`` the numbers of blocks differ by one at most; with them they are in proportion to the shares.
    """
    blocks = -(-count // BLOCK)
    if shares is None:
        edges = [min(count, blocks * rank // nranks * BLOCK) for rank in range(nranks + 1)]
    else:
        ends = [min(1.0, part / sum(shares)) for part in itertools.accumulate(shares)]
        edges = [0, *(min(count, round(blocks * end) * BLOCK) for end in ends[:-1]), count]
    return [Span(start, end - start) for start, end in itertools.pairwise(edges)]


def segments(span: Span, most_blocks: int, at_least: int = 1) -> list[Span]:
    """Cut a span into the fewest equal pieces of at most ``most_blocks`` blocks, and into ``at_least`` where it can."""
    pieces = min(span.blocks, max(at_least, -(-span.blocks // most_blocks)))
    edges = [min(span.count, span.blocks * piece // pieces * BLOCK) for piece in range(pieces + 1)] if pieces else []
    return [Span(span.start + start, end - start) for start, end in itertools.pairwise(edges)]


def ramped(span: Span, most_blocks: int) -> list[Span]:
    """Cut a span as :func:`segments` does, but with shorter pieces at both ends of a long span.

    Nothing else can move while the first segment is published, and nothing else while the last one is gathered.
    """
    first, second = most_blocks // 4, most_blocks // 2
    if not first or span.blocks < 3 * most_blocks:
        return segments(span, most_blocks)
    middle = span.blocks - 2 * (first + second)
    pieces = -(-middle // most_blocks)
    between = [first + second + middle * piece // pieces for piece in range(pieces + 1)]
    edges = [0, first, *between, span.blocks - first, span.blocks]
    cuts = [min(span.count, edge * BLOCK) for edge in edges]
    return [Span(span.start + start, end - start) for start, end in itertools.pairwise(cuts)]


def abreast(parts: Sequence[Sequence[Span]]) -> list[dict[int, Span]]:
    """Return a row of the first segments, by chunk, then a row of the second ones, and so on."""
    longest = max(map(len, parts))
    return [{chunk: part[at] for chunk, part in enumerate(parts) if at < len(part)} for at in range(longest)]


def pipelined(stages: Sequence[Stages]) -> Iterator[Step]:
    """Yield the stages of consecutive segments so that the first stage of one runs beside the rest of the one before.

    Args:
        stages: per segment, its stages; per stage, the steps of all ranks.
    """
    for index, stage in enumerate(stages):
        if index == 0:
            yield from stage[0]
        if index + 1 < len(stages):
            yield from stages[index + 1][0]
        for later in stage[1:]:
            yield from later


def overlapped(stages: Sequence[Stages], lag: int = 1) -> Iterator[Step]:
    """Yield the stages of consecutive segments so that a rank does one stage of each of several segments at a time.

    Everything that a rank does at one time is one step, whose kernels read and write slots at once, so that both
    directions of the rank's link are busy. A step reads slots that were written ``lag`` times earlier.
    """
    longest = max(map(len, stages), default=0)
    for time in range(len(stages) + lag * (longest - 1)):
        due = [stages[time - lag * at][at] for at in reversed(range(longest)) if _has(stages, time - lag * at, at)]
        ranks: dict[int, list[Step]] = {}
        for step in itertools.chain.from_iterable(due):
            ranks.setdefault(step.rank, []).append(step)
        for rank, steps in sorted(ranks.items()):
            phase = "+".join(dict.fromkeys(step.phase for step in steps))
            yield Step(rank, phase, tuple(action for step in steps for action in step.actions))


def _has(stages: Sequence[Stages], segment: int, stage: int) -> bool:
    return 0 <= segment < len(stages) and stage < len(stages[segment])


def interleaved(stages: Sequence[Stages], sets: int) -> Iterator[Step]:
    """Yield the stages of consecutive segments so that ``sets`` of them are under way at a time, evenly apart.

    A segment ends before the segment ``sets`` later begins, so that the two can use the same slots.

    Args:
        stages: per segment, its stages; per stage, the steps of all ranks.
        sets: how many segments may be under way.
    """
    longest = max(map(len, stages), default=0)
    apart = -(-longest // sets)
    for time in range(apart * (len(stages) - 1) + longest):
        newest = time // apart
        for index in range(max(0, newest - sets + 1), min(newest + 1, len(stages))):
            at = time - index * apart
            if at < len(stages[index]):
                yield from stages[index][at]
