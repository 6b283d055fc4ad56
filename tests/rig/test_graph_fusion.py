"""Fused sums in graphs: operations fill slots and steps go on as operations would, and not a bit changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FULL, Rigs
from helpers.comm.carrying import carried
from helpers.graph.fusing import WIRES, Arrays, Sum, bits, force_gpu
from helpers.ops.reducing import fresh_devices
from helpers.process.children import check_child, child_environment

import vkpar
from vkpar import env
from vkpar.graph import fusion

pytestmark = [pytest.mark.rig, pytest.mark.sampled(6)]
TESTS = str(Path(__file__).parents[1])
Open = Callable[..., vkpar.Communicator]

# Rows and columns: cut within fours, eights and blocks, just at their borders, and some way past them.
SHAPES = [(1, 5), (1, 1000), (3, 257)]
SHAPES += [(1, 1), (1, 8), (1, 256), (1, 4096), (2, 300), (3, 64), (4, 257), (4, 1000)] if FULL else []
NORMS: list[tuple[int, int, str]] = [(1, 5, "float32"), (3, 8, "float16"), (1, 1000, "float32")]
NORMS += [(1, 4096, "float16")] if FULL else []
NORMS += [(1, 4, "float16"), (1, 262, "float32"), (4, 300, "float32"), (2, 1024, "float16")] if FULL else []


RIGS = [*(("LL", wire) for wire in WIRES), ("LLL", "f16"), ("LLL", "q8")]
# SwiftShader compiles these kernels for half a minute.
RIGS += (
    [(letters, wire) for letters in ("SS", "LLL", "SSS") for wire in WIRES if (letters, wire) not in RIGS]
    if FULL
    else []
)
SAME = ["LL", "SS"] if FULL else ["LL"]


@pytest.fixture(autouse=True)
def gpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU drivers run the kernels of GPUs, of which alone anything is fused."""
    force_gpu(monkeypatch.setattr)


@pytest.fixture(scope="module")
def own(rigs: Rigs) -> Iterator[Callable[[str], list[vkpar.Device]]]:
    """Give devices by letters that no other module uses: their plans are those of GPUs."""
    opened: dict[str, list[vkpar.Device]] = {}

    def make(letters: str) -> list[vkpar.Device]:
        for letter in letters:
            if letter not in opened:
                opened[letter] = fresh_devices(rigs, 3 * letter)
        return [opened[letter][letters[:rank].count(letter)] for rank, letter in enumerate(letters)]

    yield make
    for devices in opened.values():
        for device in devices:
            device.close()


@pytest.fixture
def direct(own: Callable[[str], list[vkpar.Device]]) -> Iterator[Open]:
    """Give a function that opens a communicator whose sums take one step to send and one to gather."""
    opened: list[vkpar.Communicator] = []

    def make(letters: str = "LL", algorithm: str = "direct", **options: Any) -> vkpar.Communicator:
        opened.append(vkpar.Communicator(own(letters), algorithm=algorithm, **options))
        return opened[-1]

    yield make
    for comm in opened:
        comm.close()


# ---- products that are sent ----


@pytest.mark.parametrize(("letters", "wire"), RIGS)
def test_products_are_sent_by_their_kernels(direct: Open, letters: str, wire: str) -> None:
    comm = direct(letters, wire=wire)
    for transposed in (True, False):
        for m, n in SHAPES:
            case = Sum(comm, m, n, transposed=transposed)

            def work(case: Sum = case) -> Arrays:
                comm.all_reduce(case.products())
                return case.y

            case.check(work, fused=comm.nranks)


@pytest.mark.parametrize("wire", WIRES)
def test_sums_that_go_elsewhere(direct: Open, wire: str) -> None:
    comm = direct(wire=wire)
    for m, n in ((1, 5), (1, 1000), (3, 256)):
        case = Sum(comm, m, n)
        out = case.arrays(m, n)

        def work(case: Sum = case, out: Arrays = out) -> Arrays:
            comm.all_reduce(case.products(), out=out)
            return [*case.y, *out]

        case.check(work, fused=2)


@pytest.mark.parametrize("letters", SAME)
def test_sums_over_what_the_product_reads_are_not_fused(direct: Open, letters: str) -> None:
    """Some groups would still read what others have overwritten with the sum."""
    comm = direct(letters)
    case = Sum(comm, 1, 1000, 1000)
    case.check(lambda: [*case.y, *keeping(comm.all_reduce(case.products(), out=case.x), case.x)], fused=0)


def keeping(_work: object, arrays: Arrays) -> Arrays:
    return arrays


@pytest.mark.parametrize(("letters", "wire"), RIGS)
def test_nan_and_infinities(direct: Open, letters: str, wire: str) -> None:
    comm = direct(letters, wire=wire)
    for m, n in ((1, 1000), (3, 24)) if letters == "LL" else ((3, 257),):
        case = Sum(comm, m, n, special=True)

        def work(case: Sum = case) -> Arrays:
            comm.all_reduce(case.products())
            totals = [vkpar.add(y, r) for y, r in zip(case.y, case.r, strict=True)]
            return [*case.y, *totals]

        case.check(work, fused=2 * comm.nranks)


@pytest.mark.parametrize("wire", WIRES)
def test_averages(direct: Open, wire: str) -> None:
    comm = direct("LLL", wire=wire)
    for n in (6, 1000):
        case = Sum(comm, 1, n)

        def work(case: Sum = case) -> Arrays:
            comm.all_reduce(case.products(), op="avg")
            return [*case.y, *(vkpar.add(r, y) for y, r in zip(case.y, case.r, strict=True))]

        case.check(work, fused=6)


def test_what_is_sent_otherwise_is_not_fused(direct: Open) -> None:
    """Halves, more rows than such kernels make, other operations, parts of the results."""
    comm = direct()
    halves = Sum(comm, 1, 300)
    case, tall = Sum(comm, 1, 512), Sum(comm, 9, 64)
    wide = [device.zeros((1, 600)) for device in comm.devices]

    def narrow() -> Arrays:
        made = [vkpar.matmul(x, w, transpose_b=True, dtype="float16") for x, w in zip(halves.x, halves.w, strict=True)]
        return keeping(comm.all_reduce(made), made)

    def part() -> Arrays:
        return keeping(comm.all_reduce([y.reshape(-1)[:256] for y in case.products()]), case.y)

    def larger() -> Arrays:
        whole = [each.reshape(-1)[:512].reshape(1, 512) for each in wide]
        case.products(whole)
        return keeping(comm.all_reduce(wide), wide)

    def largest() -> Arrays:
        return keeping(comm.all_reduce(case.products(), op="max"), case.y)

    halves.check(narrow, fused=0)
    tall.check(lambda: keeping(comm.all_reduce(tall.products()), tall.y), fused=0)
    for work in (part, larger):
        case.check(work, fused=0)
    case.check(largest, fused=2)  # of a rank alone, the largest is what it has


def test_operations_between(direct: Open) -> None:
    """What reads a product before it is summed sees the product."""
    comm = direct()
    case = Sum(comm, 1, 1000)

    def before() -> Arrays:
        made = [vkpar.add(y, r) for y, r in zip(case.products(), case.r, strict=True)]
        return [*made, *keeping(comm.all_reduce(case.y), case.y)]

    def after() -> Arrays:
        comm.all_reduce(case.products())
        copies = [y.copy() for y in case.y]
        return [*copies, *(vkpar.add(y, r) for y, r in zip(case.y, case.r, strict=True)), *case.y]

    def twice() -> Arrays:
        comm.all_reduce(case.products())
        comm.all_reduce(case.y)
        return [*case.y, *(vkpar.add(y, r) for y, r in zip(case.y, case.r, strict=True))]

    case.check(before, fused=0)
    case.check(after, fused=2)
    case.check(twice, fused=4)


def test_slots_that_are_carried(direct: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that operations do the work of raise flags and wait for them as others do; so do those beside them."""
    with carried(monkeypatch):
        case = Sum(direct(transport="peer"), 1, 1000)
        case.check(lambda: keeping(case.comm.all_reduce(case.products()), case.y), fused=2)
        case.check(norms(case), fused=4)

        def twice() -> Arrays:
            case.comm.all_reduce(case.products())
            case.comm.all_reduce(case.y)
            return [*case.y, *(vkpar.add(y, r) for y, r in zip(case.y, case.r, strict=True))]

        case.check(twice, fused=4)


@pytest.mark.parametrize("first", [0, 1, 4, 60, 64])
def test_views(direct: Open, first: int) -> None:
    """Where a view begins at any element, the results are right."""
    comm = direct()
    case = Sum(comm, 1, 999)
    pools, others = case.arrays(1200), case.arrays(1200)
    views = [pool[first : first + 999].reshape(1, 999) for pool in pools]
    residuals = [other[first : first + 999].reshape(1, 999) for other in others]

    def work() -> Arrays:
        for residual, r in zip(residuals, case.r, strict=True):
            vkpar.copy(r, residual)
        comm.all_reduce(case.products(views))
        for residual, view in zip(residuals, views, strict=True):
            vkpar.add(residual, view, out=residual)
        return [*pools, *others]

    case.check(work, fused=4 if first % 4 == 0 else 0)


# ---- residuals that are added ----

FORMS: dict[str, Callable[[vkpar.Array, vkpar.Array, vkpar.Array], vkpar.Array]] = {
    "in place": lambda y, r, o: vkpar.add(r, y, out=r),
    "fresh": lambda y, r, o: vkpar.add(r, y),
    "swapped": lambda y, r, o: vkpar.add(y, r),
    "out": lambda y, r, o: vkpar.add(y, r, out=o),
}
UNLIKE: dict[str, Callable[[vkpar.Array, vkpar.Array, vkpar.Array], vkpar.Array]] = {
    "out=y": lambda y, r, o: vkpar.add(r, y, out=y),
    "with itself": lambda y, r, o: vkpar.add(y, y, out=o),
    "bias": lambda y, r, o: vkpar.add(y, r.reshape(-1)[:500], out=o),
    "of others": lambda y, r, o: vkpar.add(r, r, out=o),
    "subtracted": lambda y, r, o: vkpar.subtract(r, y, out=o),
    "part": lambda y, r, o: vkpar.add(y.reshape(-1)[:4], r.reshape(-1)[:4]),
}


@pytest.mark.parametrize(("letters", "wire"), RIGS)
def test_residuals_are_added_by_the_gather(direct: Open, letters: str, wire: str) -> None:
    comm = direct(letters, wire=wire)
    for number, form in enumerate(FORMS.values()):
        for m, n in SHAPES if FULL else (SHAPES[number % 2], SHAPES[2]):
            check_added(Sum(comm, m, n), form, 2 * comm.nranks)


@pytest.mark.parametrize("form", UNLIKE)
def test_other_additions_are_not_fused(direct: Open, form: str) -> None:
    check_added(Sum(direct(), 2, 500), UNLIKE[form], 2)


def check_added(case: Sum, form: Callable[..., vkpar.Array], fused: int) -> None:
    out = case.arrays(*case.y[0].shape)

    def work() -> Arrays:
        case.comm.all_reduce(case.products())
        return [*(form(*each) for each in zip(case.y, case.r, out, strict=True)), *case.y, *case.r, *out]

    case.check(work, fused)


def test_a_residual_that_overlaps_the_sum_is_not_fused(direct: Open) -> None:
    """Some elements of the residual are those of the sum: they are read after it was stored."""
    case = Sum(direct(), 1, 1000)
    pools = [case.array(device, np.ones(1004, np.float32)) for device in case.comm.devices]
    views = [pool[:1000].reshape(1, 1000) for pool in pools]

    def work() -> Arrays:
        for pool in pools:
            vkpar.add(pool, pool, out=pool)
        case.comm.all_reduce(case.products(views))
        return [*pools, *(vkpar.add(view, pool[4:].reshape(1, 1000)) for view, pool in zip(views, pools, strict=True))]

    case.check(work, fused=2)


# ---- norms ----


def norms(case: Sum, *, op: str = "sum", weights: Arrays | None = None, **options: Any) -> Callable[[], Arrays]:
    """Return what sums, and makes norms with ``options`` of the residual."""

    def work() -> Arrays:
        case.comm.all_reduce(case.products(), op=op)
        made = list(case.y)
        for rank, (y, r) in enumerate(zip(case.y, case.r, strict=True)):
            weight = None if weights is None else weights[rank]
            chosen = {name: each(rank) for name, each in options.items()}
            made += vkpar.rms_norm(y, weight, residual=chosen.pop("residual", r), **chosen)
        return [*made, *case.r]

    return work


@pytest.mark.parametrize(("letters", "wire"), RIGS)
def test_norms_are_made_by_the_gather(direct: Open, letters: str, wire: str) -> None:
    comm = direct(letters, wire=wire)
    chance = np.random.default_rng(3)
    for m, n, dtype in NORMS:
        case = Sum(comm, m, n)
        weight = chance.normal(size=n).astype(dtype)
        case.check(norms(case, weights=[device.array(weight) for device in comm.devices]), 2 * comm.nranks)
    case.check(norms(case), fused=2 * comm.nranks)
    case.check(norms(case, op="avg"), fused=2 * comm.nranks)


@pytest.mark.parametrize("n", [9001, 16384])
def test_norms_of_the_longest_rows(direct: Open, n: int) -> None:
    """These take the widest groups, whose invocations gather one four at a time."""
    comm = direct("LL", wire="q8")
    if comm.devices[0].limits.max_workgroup_invocations < 1024:
        pytest.skip("the device has no groups of 1024")
    case = Sum(comm, 1, n, 8)
    case.check(norms(case), fused=4)


@pytest.mark.parametrize("letters", SAME)
def test_norms_in_place(direct: Open, letters: str) -> None:
    """Of the sum, of the residual, and elsewhere: what overwrites the sum is not fused."""
    comm = direct(letters)
    case = Sum(comm, 2, 1000)
    out = case.arrays(2, 1000)
    case.check(norms(case, out=lambda rank: (out[rank], case.r[rank])), fused=4)
    case.check(norms(case, out=lambda rank: (case.r[rank], out[rank])), fused=4)
    case.check(norms(case, out=lambda rank: (None, case.r[rank])), fused=4)
    case.check(norms(case, out=lambda rank: (case.y[rank], case.r[rank])), fused=2)
    case.check(norms(case, out=lambda rank: (out[rank], case.y[rank])), fused=2)


@pytest.mark.parametrize("wire", WIRES)
def test_norms_of_nan_and_infinities(direct: Open, wire: str) -> None:
    for letters in SAME:
        case = Sum(direct(letters, wire=wire), 4, 24, special=True)
        case.check(norms(case), fused=4)


def test_other_norms_are_not_fused(direct: Open) -> None:
    """Rows that begin within fours, halves, weights and residuals that are the sum; without a residual; long rows."""
    comm = direct()
    case, odd, long = Sum(comm, 1, 1000), Sum(comm, 2, 5), Sum(comm, 1, 20_000, 8)
    halves = [vkpar.cast(r, "float16") for r in case.r]
    case.check(norms(case, residual=lambda rank: halves[rank]), fused=2)
    case.check(norms(case, residual=lambda rank: case.y[rank]), fused=2)
    case.check(norms(case, weights=[y.reshape(-1) for y in case.y]), fused=2)
    odd.check(norms(odd), fused=2)
    long.check(norms(long), fused=2)

    def alone() -> Arrays:
        comm.all_reduce(case.products())
        return [*case.y, *(vkpar.rms_norm(y) for y in case.y)]

    case.check(alone, fused=2)


# ---- whole graphs ----


def layers(case: Sum, depth: int) -> Callable[[], Arrays]:
    """Return layers: a product, its sum into the residual stream, a norm, and the next product of that."""

    def work() -> Arrays:
        comm, x, states = case.comm, list(case.x), list(case.r)
        for _ in range(depth):
            y = [vkpar.matmul(a, w, transpose_b=True) for a, w in zip(x, case.w, strict=True)]
            comm.all_reduce(y)
            pairs = [vkpar.rms_norm(a, residual=r) for a, r in zip(y, states, strict=True)]
            y = [vkpar.matmul(a, w, transpose_b=True) for (a, _), w in zip(pairs, case.w, strict=True)]
            comm.all_reduce(y)
            states = [vkpar.add(h, a) for (_, h), a in zip(pairs, y, strict=True)]
            x = [vkpar.rms_norm(state) for state in states]
        return [*x, *states]

    return work


@pytest.mark.parametrize("letters", [*SAME, "LLL"])
def test_layers_launched_many_times_leave_counters_at_zero(
    direct: Open, letters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = direct(letters)
    counters: list[vkpar.Array] = []
    take = fusion._Counters.take

    def noting(self: Any, *arguments: Any) -> vkpar.Array:
        counters.append(take(self, *arguments))
        return counters[-1]

    monkeypatch.setattr(fusion._Counters, "take", noting)
    case = Sum(comm, 1, 264, 264)
    work = layers(case, 3)
    case.check(work, fused=4 * 3 * comm.nranks, launches=3)
    case.reset()
    wanted = bits(work())
    counters.clear()
    with vkpar.capture(comm.devices, comm=comm) as graph:
        made = work()
    for launch in [graph.launch() for _ in range(50)]:
        launch.wait()
    assert bits(made) == wanted
    assert len(counters) == 2 * 3 * comm.nranks
    assert not any(counter.numpy().any() for counter in counters)
    graph.close()


def test_two_graphs_of_the_same_arrays(direct: Open) -> None:
    comm = direct()
    case = Sum(comm, 1, 1000)

    def work() -> Arrays:
        comm.all_reduce(case.products())
        return [*(vkpar.add(r, y, out=r) for y, r in zip(case.y, case.r, strict=True)), *case.y]

    case.reset()
    for _ in range(6):
        made = work()
    wanted = bits(made)
    graphs = []
    for _ in range(2):
        with vkpar.capture(comm.devices, comm=comm) as graph:
            work()
        assert graph.stats().fused == 4
        graphs.append(graph)
    case.reset()
    for graph in graphs * 3:
        graph.launch()
    assert bits(made) == wanted
    for graph in graphs:
        graph.close()


def test_a_profile_of_fused_sums(direct: Open) -> None:
    """The graph is recorded once more, with times, and does the same."""
    comm = direct()
    case = Sum(comm, 1, 1000)
    case.reset()
    wanted = bits(keeping(comm.all_reduce(case.products()), case.y))
    with vkpar.capture(comm.devices, comm=comm) as graph:
        comm.all_reduce(case.products())
    with comm.profile():
        graph.launch().wait()
    assert bits(case.y) == wanted
    graph.close()


@pytest.mark.sampled(97)
@pytest.mark.parametrize(
    ("letters", "algorithm"), [("LS", "auto"), ("LSL", "auto"), ("LLL", "two_shot"), ("LL", "ring")]
)
def test_other_algorithms_are_not_fused(direct: Open, letters: str, algorithm: str) -> None:
    comm = direct(letters, algorithm)
    for wire in ("f16", "f32"):
        case = Sum(comm, 2, 1000)

        def work(case: Sum = case, wire: str = wire) -> Arrays:
            comm.all_reduce(case.products(), wire=wire)
            made = [vkpar.add(r, y) for y, r in zip(case.y, case.r, strict=True)]
            return [*made, *case.y]

        case.check(work, fused=0)


@pytest.mark.parametrize("debug", ["barriers", "alignment", "slots"])
def test_debug_checks(rigs: Rigs, debug: str) -> None:
    """Full barriers and strict bindings change no bit."""
    with env.override(debug=debug):
        devices = fresh_devices(rigs, "LL")
        with vkpar.Communicator(devices, algorithm="direct") as comm:
            case = Sum(comm, 2, 1000)
            check_added(case, FORMS["in place"], 4)
            case.check(norms(case), 4)
        for device in devices:
            device.close()


SYNCHRONIZATION = """
import sys
sys.path.insert(0, sys.argv[1])
from helpers.graph.fusing import Sum, force_gpu
import vkpar

force_gpu(setattr)
devices = vkpar.open_devices(sys.argv[2])
with vkpar.Communicator(devices, algorithm="direct", wire=sys.argv[3]) as comm:
    for n in (200, 1024):  # one launch makes each sum: of two, the layer believes that they write the same elements
        case = Sum(comm, 1, n)

        def work():
            comm.all_reduce(case.products())
            pairs = [vkpar.rms_norm(y, residual=r) for y, r in zip(case.y, case.r)]
            comm.all_reduce(case.products())
            return [*case.y, *(vkpar.add(h, y) for (_, h), y in zip(pairs, case.y)), *(y for y, _ in pairs)]

        case.check(work, 8)
for device in devices:
    device.close()
"""


@pytest.mark.parametrize("selector", ["llvmpipe*2", *(["swiftshader*2"] if FULL else [])])
@pytest.mark.parametrize("wire", ["f16", "f32"])
def test_synchronization_validation(rigs: Rigs, selector: str, wire: str) -> None:
    if not env.get().validation:
        pytest.skip("no validation layer")
    rigs(selector)
    variables = {
        "VKPAR_VALIDATION": "1",
        "VK_LAYER_ENABLES": "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT",
    }
    check_child(SYNCHRONIZATION, TESTS, selector, wire, environment=child_environment(**variables), timeout=240)
