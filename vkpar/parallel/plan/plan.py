"""How a model is best split over a rig: which mode, who gets how much, what it takes and how fast it would be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from vkpar import text
from vkpar.comm.communicator import Communicator
from vkpar.device import Device
from vkpar.errors import InvalidUsageError, UnsupportedError
from vkpar.ops.attention.attention import MOST_WIDTH
from vkpar.ops.tiles.cpu import weights_of
from vkpar.parallel.cut.split import Ratios, Rig, cut, devices_of, free_memory, in_all, shares
from vkpar.parallel.plan.footprint import Footprint
from vkpar.parallel.plan.laying import footprint
from vkpar.parallel.plan.placing import MODES
from vkpar.parallel.plan.report import MOST_CONTEXT, Plan, RankMemory, RigFacts, memory_of
from vkpar.parallel.plan.scratch import batch_of
from vkpar.parallel.plan.spec import ModelSpec
from vkpar.parallel.rates import speed
from vkpar.vulkan.memory.subbuffers import GRANULE

_log = logging.getLogger("vkpar")

_ALIKE: Final = 1.03  # times the least: estimates that differ by less say nothing


def plan(
    spec: ModelSpec,
    comm: Rig,
    *,
    mode: str = "auto",
    ratios: Ratios = "speed",
    context: int = 4096,
    batch: int = 1,
    strict: bool = False,
) -> Plan:
    """Return how a model is split over a rig.

    Where the mode is ``"auto"`` or the ratios are ``"speed"``, the devices' speeds and the cost of a sum are measured
    the first time (a second or two on GPUs), and kept; else nothing is measured, and there is no estimate. Where
    ``ratios`` is ``"speed"`` and the shares do not fit the devices' memory, shares by memory are tried next.

    Args:
        spec: the model.
        comm: a communicator, or its devices; of devices a communicator is made to measure a sum.
        mode: ``"tensor"``: each rank has some heads, some of the feed-forward width and some of the vocabulary of all
            blocks. ``"expert"``: the same, but each has whole experts in place of some of their width. ``"row"``: one
            rank has all but slices of large weights. ``"layer"``: each rank has some blocks.
            ``"single"``: the rank with the largest ratio has all, the first of equals. ``"auto"``: the one with the
            lowest estimate that fits, or a simpler one whose estimate is as good as that. A mode that is not possible
            falls back to the next of this order, with a warning.
        ratios: what each rank gets, as :func:`split` takes it. Where ``"auto"`` takes ``"single"``, numbers say no more
            than which ranks may have it: that is a warning.
        context: tokens that there is room for.
        batch: texts at once.
        strict: raise where the mode is not possible, in place of falling back.

    Raises:
        InvalidUsageError: an unknown mode; a context or batch below 1; ratios that :func:`split` refuses.
        UnsupportedError: no mode is possible, or with ``strict`` the one that was asked for; the message says why.
            Heads that are wider than attention takes.

    Examples:
        >>> sizes = {"width": 64, "hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocabulary": 256}
        >>> spec = vkpar.parallel.ModelSpec(layers=2, **sizes)
        >>> made = vkpar.parallel.plan(spec, comm, mode="tensor", ratios=[1, 1], context=64)
        >>> made.mode, made.splits["inner"].counts
        ('tensor', (64, 64))
    """
    if mode not in (*MODES, "auto"):
        raise InvalidUsageError(f"there is no mode {mode!r}; there are auto, {', '.join(MODES)}")
    for name, value in (("context", context), ("batch", batch)):
        if type(value) is not int or not 0 < value <= MOST_CONTEXT:
            raise InvalidUsageError(f"{name} is a whole number from 1 to {MOST_CONTEXT}, not {value!r}")
    found = shares(comm, ratios)
    by_speed = isinstance(ratios, str) and ratios == "speed"
    facts = measured(spec, comm) if mode == "auto" or by_speed else known_of(comm)
    spare = shares(comm, "memory") if by_speed and any(facts.free) else None
    made = choose(spec, facts, found, spare, mode=mode, context=context, batch=batch, strict=strict)
    if facts.speeds:
        made = _with_halves(made, comm)
    numbered = not isinstance(ratios, str) or "," in ratios
    if mode == "auto" and made.mode == "single" and numbered and sum(ratio > 0 for ratio in found) > 1:
        home = made.ratios.index(max(made.ratios))
        told = f"the ratios {':'.join(f'{float(ratio):g}' for ratio in found)} are not used: auto took single, on rank "
        made = replace(made, reasons=(*made.reasons, f"{told}{home} ({facts.names[home]})"))
        _log.warning("%s; name a mode to split by them", made.reasons[-1])
    return made


def known(devices: Sequence[Device]) -> RigFacts:
    """Return what a plan knows of devices of which nothing was measured."""
    limits = [device.limits for device in devices]
    return RigFacts(
        names=tuple(map(str, devices)),
        free=tuple(free_memory(devices)),
        piece=batch_of(devices),
        products=tuple(weights_of(device.info) for device in devices),
        bindings=tuple(min(each.max_storage_buffer_range, each.max_buffer // GRANULE * GRANULE) for each in limits),
    )


def known_of(comm: Rig) -> RigFacts:
    """Return :func:`known` of a rig: each process tells of its own devices."""
    each = in_all(comm, "what plans know of devices", lambda devices: [known(devices)])
    return RigFacts(
        names=tuple(name for facts in each for name in facts.names),
        free=tuple(nbytes for facts in each for nbytes in facts.free),
        piece=min(facts.piece for facts in each),
        products=tuple(product for facts in each for product in facts.products),
        bindings=tuple(nbytes for facts in each for nbytes in facts.bindings),
    )


def measured(spec: ModelSpec, comm: Rig) -> RigFacts:
    """Return what a plan knows of a rig, measured now or earlier; of several processes each measures its devices."""
    devices = devices_of(comm)
    if isinstance(comm, Communicator) or len(devices) == 1:
        seconds = speed.sum_seconds(comm, spec.width) if isinstance(comm, Communicator) else 0.0
    else:
        with Communicator(devices) as made:
            seconds = speed.sum_seconds(made, spec.width)

    def op_seconds(own: Sequence[Device]) -> list[float]:
        return speed.levelled(own, [speed.op_seconds(device, spec.width) for device in own])

    def speeds(own: Sequence[Device]) -> list[float]:
        return speed.speeds(own, spec.weights)

    return replace(
        known_of(comm),
        speeds=tuple(in_all(comm, "speeds of devices", speeds)),
        op_seconds=tuple(in_all(comm, "times of operations", op_seconds)),
        sum_seconds=seconds,
    )


def _with_halves(made: Plan, comm: Rig) -> Plan:
    """Add to a plan whether prompts are to go in two halves, where several GPUs sum."""
    ranks = sum(ratio > 0 for ratio in made.ratios)
    if made.mode != "tensor" or ranks < 2:
        return made
    summing = comm if isinstance(comm, Communicator) else None
    ratio = speed.halves_ratio(devices_of(comm), made.spec.width, made.spec.inner(ranks), summing)
    if ratio is None:
        return made
    made = replace(made, halves=ratio)
    how = "in two halves" if made.in_halves else "whole"
    told = f"prompts go {how}: halves of {speed.PROMPT} rows take {ratio:.2f} of the time of whole ones (measured)"
    return replace(made, reasons=(*made.reasons, told))


def choose(
    spec: ModelSpec,
    facts: RigFacts,
    ratios: Sequence[Fraction],
    spare: Sequence[Fraction] | None = None,
    *,
    mode: str = "auto",
    context: int = 4096,
    batch: int = 1,
    strict: bool = False,
) -> Plan:
    """Return the plan that :func:`plan` makes of facts; pure but for warnings.

    Args:
        spec: the model.
        facts: of the rig.
        ratios: by rank.
        spare: ratios to try where the others do not fit; None for none.
        mode: as :func:`plan` takes it.
        context: tokens that there is room for.
        batch: texts at once.
        strict: raise in place of falling back.
    """

    def attempt(each: str) -> Plan:
        if spare is None or each == "single":
            return _attempt(spec, facts, each, ratios, spare, context, batch)
        return _without_slow(facts, ratios, spare, lambda a, b: _attempt(spec, facts, each, a, b, context, batch))

    if spec.head_dim > MOST_WIDTH:
        raise UnsupportedError(f"the model's heads have {spec.head_dim} elements, and attention takes {MOST_WIDTH}")
    if mode == "auto":
        return _fastest(facts, attempt, MODES if spec.experts else MODES[1:])
    reasons: list[str] = []
    for each in MODES[MODES.index(mode) :]:
        try:
            made = attempt(each)
        except UnsupportedError as error:
            if strict:
                raise
            reasons.append(str(error))
            if each != MODES[-1]:
                _log.warning("%s; trying the mode %s", error, MODES[MODES.index(each) + 1])
            continue
        return replace(made, reasons=(*reasons, *made.reasons))
    raise UnsupportedError("no mode is possible: " + "; ".join(reasons))


def _fastest(facts: RigFacts, attempt: Callable[[str], Plan], modes: Sequence[str]) -> Plan:
    found: dict[str, Plan] = {}
    refused: list[str] = []
    for mode in reversed(modes):  # the simpler one, where two take as long
        try:
            found[mode] = attempt(mode)
        except UnsupportedError as error:
            refused.append(str(error))
    if not found:
        raise UnsupportedError("no mode is possible: " + "; ".join(refused))
    least = min(map(_estimate, found.values()))
    best = next(mode for mode, made in found.items() if _estimate(made) <= _ALIKE * least)
    others = [f"{mode} would take {_took(made, facts)}" for mode, made in found.items() if mode != best]
    reason = f"{best}: {'; '.join([*others, f'{best} {_took(found[best], facts)}'])}"
    most = _ALIKE * _estimate(found[best])
    near = [mode for mode, made in found.items() if mode != best and _estimate(made) <= most]
    if near:
        alike = f"{' and '.join([best, *near])} differ by less than estimates are off"
        idle = " (of one text, ranks with blocks of their own take turns)" if "layer" in near else ""
        reason = f"{reason}; {alike}{idle}: {best} is the simplest"
    return replace(found[best], reasons=(reason, *refused, *found[best].reasons))


def _estimate(made: Plan) -> float:
    assert made.seconds is not None, "what is compared was measured"
    return made.seconds


def _took(made: Plan, facts: RigFacts) -> str:
    count = sum(made.collectives.values())
    sums = f" ({count} sums or moves of {facts.sum_seconds * 1e6:.3g} us)" if count else ""
    return f"{_estimate(made) * 1e3:.3g} ms a token{sums}"


_Exact = tuple[Fraction, ...]


def _without_slow(
    facts: RigFacts, ratios: Sequence[Fraction], spare: Sequence[Fraction], attempt: Callable[[_Exact, _Exact], Plan]
) -> Plan:
    """Return the fastest plan of all devices, all but the slowest, all but the two slowest ...

    Raises:
        UnsupportedError: none is possible; that of all devices says why.
    """
    found: list[Plan] = []
    failed: UnsupportedError | None = None
    order = sorted(range(facts.nranks), key=lambda rank: -facts.speeds[rank])
    for count in range(facts.nranks, 0, -1):
        kept = set(order[:count])
        given = [tuple(each * (rank in kept) for rank, each in enumerate(exact)) for exact in (ratios, spare)]
        if not all(map(any, given)):
            continue
        try:
            found.append(attempt(given[0], given[1]))
        except UnsupportedError as error:
            failed = failed or error
    if not found:
        assert failed is not None
        raise failed
    best = min(found, key=_estimate)
    if best is found[0]:
        return best
    idle = [rank for rank, (a, b) in enumerate(zip(found[0].ratios, best.ratios, strict=True)) if a and not b]
    names = ", ".join(f"rank {rank} ({facts.names[rank]})" for rank in idle)
    times = f"{_estimate(found[0]) * 1e3:.3g} ms with it, {_estimate(best) * 1e3:.3g} without"
    return replace(best, reasons=(*best.reasons, f"{best.mode}: {names} gets nothing: a token would take {times}"))


def _attempt(
    spec: ModelSpec,
    facts: RigFacts,
    mode: str,
    ratios: Sequence[Fraction],
    spare: Sequence[Fraction] | None,
    context: int,
    batch: int,
) -> Plan:
    """Return the plan of one mode; an UnsupportedError where it is not possible, or does not fit."""
    tries = [tuple(each) for each in (ratios, spare) if each is not None]
    if mode == "single":
        tries = _alone(facts, ratios)
    short = ""
    for number, given in enumerate(tries):
        try:
            exact = _rebalanced(spec, facts, given, context, batch) if mode == "layer" else given
            needs = footprint(spec, mode, exact)
        except UnsupportedError as error:
            short = short or str(error)
            continue
        parts = memory_of(spec, needs, context, batch, facts.piece, facts.products)
        memory = tuple(RankMemory(*part, free) for part, free in zip(parts, facts.free, strict=True))
        lacking = next((rank for rank, each in enumerate(memory) if each.weights and not each.fits), None)
        if lacking is not None:
            need, free = text.units(memory[lacking].total), text.units(memory[lacking].free)
            short = short or f"{mode}: rank {lacking} would need {need} and has {free} free"
            continue
        unseen = _unseen(spec, facts, needs, context, batch)
        if unseen is not None:
            short = short or f"{mode}: {unseen}"
            continue
        reasons = _left_out(facts, needs, given)
        if number:
            how = "on another rank than the fastest" if mode == "single" else "by memory in place of speed"
            reasons.append(f"{mode}, {how}: {short}")
        return Plan(
            spec=spec,
            mode=mode,
            ratios=exact,
            splits=dict(needs.splits),
            tensors=needs.tensors,
            memory=memory,
            seconds=_seconds(facts, needs),
            collectives=dict(needs.collectives),
            reasons=tuple(reasons),
            context=context,
            batch=batch,
            names=facts.names,
            piece=facts.piece,
            products=facts.products,
        )
    raise UnsupportedError(short)


def _unseen(spec: ModelSpec, facts: RigFacts, needs: Footprint, context: int, batch: int) -> str | None:
    """Say what a rank would have that its kernels do not see as a whole; None for nothing."""
    for rank, most in enumerate(facts.bindings):
        for what, nbytes in needs.seen(spec, rank, context, batch, facts.piece).items():
            if nbytes > most:
                return f"rank {rank} would have {what} in {text.units(nbytes)}, and a kernel sees {text.units(most)}"
    return None


def _alone(facts: RigFacts, ratios: Sequence[Fraction]) -> list[tuple[Fraction, ...]]:
    """Return the ratios that give all to one rank, for each rank with a share, the fastest first, else the largest."""
    first = facts.speeds or ratios
    ranks = sorted((rank for rank, ratio in enumerate(ratios) if ratio > 0), key=lambda rank: -first[rank])
    return [tuple(Fraction(rank == best) for rank in range(len(ratios))) for best in ranks]


def _rebalanced(
    spec: ModelSpec, facts: RigFacts, ratios: tuple[Fraction, ...], context: int, batch: int
) -> tuple[Fraction, ...]:
    """Return numbers of blocks, moved from ranks where they do not fit to those with most room; as given if none has.

    Raises:
        UnsupportedError: the ratios give one rank all.
    """
    counts = list(footprint(spec, "layer", ratios).splits["layers"].counts)
    for _ in range(spec.layers):
        exact = tuple(map(Fraction, counts))
        parts = memory_of(spec, footprint(spec, "layer", exact), context, batch, facts.piece, facts.products)
        room = [free - sum(part) for part, free in zip(parts, facts.free, strict=True)]
        full = [rank for rank, count in enumerate(counts) if count and room[rank] < 0]
        others = [rank for rank, left in enumerate(room) if left > 0 and ratios[rank] > 0]
        if not full or not others:
            return exact
        counts[full[0]] -= 1
        counts[max(others, key=lambda rank: room[rank])] += 1
    return tuple(map(Fraction, counts))


def _left_out(facts: RigFacts, needs: Footprint, ratios: Sequence[Fraction]) -> list[str]:
    """Say which ranks get nothing although their ratio is not 0, and why."""
    if needs.mode not in ("expert", "tensor", "layer"):
        return []
    what = "block" if needs.mode == "layer" else "head"
    reasons = []
    for rank, ratio in enumerate(ratios):
        if ratio > 0 and not needs.queries[rank]:
            dealt = needs.mode == "layer" and cut(sum(needs.blocks), ratios).counts[rank]
            share = f"{float(ratio / sum(ratios)):.2%} of the {what}s is less than a whole one"
            why = "has no room for a block" if dealt else f"gets nothing: {share}"
            reasons.append(f"rank {rank} ({facts.names[rank]}) {why}")
    return reasons


def _seconds(facts: RigFacts, needs: Footprint) -> float | None:
    """Return the estimate of one token: what is read over the speed, operations, and collectives; None without speeds.

    Between two collectives the ranks work side by side, and the slowest counts; ranks that have blocks of their own
    work one after the other.
    """
    if not facts.speeds:
        return None
    seconds = 0.0
    for stage in needs.stages:
        work = zip(stage.nbytes, stage.operations, facts.speeds, facts.op_seconds, strict=True)
        seconds += max(nbytes / rate + count * each for nbytes, count, rate, each in work)
    return seconds + sum(needs.collectives.values()) * facts.sum_seconds
