"""Peer: ranks that are cards of one vendor have the slots in their own memory, and its copy engines carry them."""

from __future__ import annotations

import itertools
import logging
import secrets
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from vkpar import cachedir, env
from vkpar._version import __version__
from vkpar.comm.rig import children
from vkpar.comm.rig.carriers import MOST_RANKS
from vkpar.errors import UnsupportedError, VulkanError
from vkpar.vulkan.machine.physical import DeviceInfo
from vkpar.vulkan.peer import claims, cuda, hip
from vkpar.vulkan.peer.vendor import Card, Vendor

NAME = "peer"
_log = logging.getLogger("vkpar")
# By VkDriverId what loads the vendor's library; 4 is VK_DRIVER_ID_NVIDIA_PROPRIETARY.
VENDORS: dict[int, Callable[[], Vendor]] = {4: cuda.load}
# The same of what was never run: VK_DRIVER_ID_AMD_PROPRIETARY, VK_DRIVER_ID_AMD_OPEN_SOURCE, VK_DRIVER_ID_MESA_RADV.
UNTRIED: dict[int, Callable[[], Vendor]] = dict.fromkeys((1, 2, 3), hip.load)
_PASSED = "passed"
_tested: dict[tuple[str, ...], str] = {}  # by the cards' UUIDs, why the self-test failed, "" where it passed


def vendors() -> dict[int, Callable[[], Vendor]]:
    """Return by VkDriverId what loads the vendor's library."""
    return {**UNTRIED, **VENDORS} if env.get().peer == "try" else VENDORS


def trust(uuids: Sequence[str]) -> None:
    """Take the self-test of these cards for passed: it runs in this process."""
    _tested[tuple(uuids)] = ""


def offer(ranks: Sequence[DeviceInfo], held: ExitStack | None = None) -> tuple[Vendor | None, str]:
    """Return the library whose copy engines carry slots between these ranks and its name, or None and the reason.

    ``held`` keeps the cards from other processes until it is closed.
    """
    vendor, told = reach(ranks)
    if vendor is None:
        return None, told
    with ExitStack() as tested:
        try:
            claim = claims.claimed(*(info.device_uuid for info in ranks if vendor.alone))
            (tested if held is None else held).enter_context(claim)
            refusal = _self_test(ranks)
        except UnsupportedError as error:
            return None, str(error)
    return (None, refusal) if refusal else (vendor, f"{told}, self-test passed")


def offer_groups(
    ranks: Sequence[DeviceInfo], held: ExitStack
) -> tuple[Vendor | None, tuple[int | None, ...] | None, str]:
    """Return the library that joins ranks of one driver, by rank the group or None, and its name; or None and why not.

    ``held`` keeps the cards. ``VKPAR_PEER=groups`` asks for that: whether it is faster was not measured.
    """
    if len(ranks) > MOST_RANKS:
        return None, None, f"{len(ranks)} ranks, not up to {MOST_RANKS}"
    reasons = []
    for driver in dict.fromkeys(info.driver_id for info in ranks if info.driver_id in vendors()):
        members = [rank for rank, info in enumerate(ranks) if info.driver_id == driver]
        vendor, told = offer([ranks[rank] for rank in members], held)
        if vendor is not None:  # one library's streams serve a communicator
            groups = tuple(driver if rank in members else None for rank in range(len(ranks)))
            return vendor, groups, f"{told}, within groups of ranks"
        reasons.append(f"of ranks {', '.join(map(str, members))}, counted from 0: {told}")
    return None, None, "; ".join(reasons) or "no copy engine of these ranks' drivers is known"


def reach(ranks: Sequence[DeviceInfo]) -> tuple[Vendor | None, str]:
    """Return the library by which these ranks reach each other's memory and its name, or None and why there is none."""
    refusal = _unlike(ranks)
    if refusal:
        return None, refusal
    try:
        vendor = vendors()[ranks[0].driver_id]()
        refusal = _apart(vendor, ranks)
    except (UnsupportedError, VulkanError) as error:
        return None, str(error)
    return (None, refusal) if refusal else (vendor, vendor.name)


def _unlike(ranks: Sequence[DeviceInfo]) -> str:
    """Say why no vendor's library is asked; "" where one is."""
    if not 2 <= len(ranks) <= MOST_RANKS:
        return f"{len(ranks)} ranks, not 2 to {MOST_RANKS}"
    for rank, info in enumerate(ranks):
        if info.driver_id not in vendors() or not sys.platform.startswith("linux"):
            untried = "; VKPAR_PEER=try takes HIP's" if info.driver_id in UNTRIED else ""
            return f"rank {rank}, {info.name}: no copy engine is known that reaches other cards{untried}"
    if len({info.driver_id for info in ranks}) > 1:
        return "cards of several vendors"
    if len({info.device_uuid for info in ranks}) < len(ranks):
        return "two ranks are the same card"
    if "slots" in env.debug_checks():
        return "VKPAR_DEBUG=slots follows slots in the memory that ranks share"
    return ""


def _apart(vendor: Vendor, ranks: Sequence[DeviceInfo]) -> str:
    """Say which two cards do not reach each other; "" where all do."""
    with ExitStack() as undo:
        cards: list[Card] = []
        for rank, info in enumerate(ranks):
            card = vendor.card(info)
            if card is None:
                return f"{vendor.name} does not know rank {rank}, {info.name}"
            undo.callback(card.close)
            cards.append(card)
        for (src, one), (dst, other) in itertools.permutations(enumerate(cards), 2):
            if not one.reaches(other):
                return f"{vendor.name}: rank {src} does not reach rank {dst}'s memory"
    return ""


def _self_test(ranks: Sequence[DeviceInfo]) -> str:
    """Sum over the cards in a child process, once; return why that failed, "" where it passed.

    A pass is kept in a file, for the driver's and vkpar's version and until the machine starts anew.
    """
    uuids = tuple(info.device_uuid for info in ranks)
    if uuids not in _tested:
        name = _file_of(ranks)
        if cachedir.document(name, lambda kept: kept[_PASSED], logging.INFO) is not True:
            problem = _problem(uuids)
            if problem:
                _tested[uuids] = f"the self-test of copies between the cards failed: {problem}"
                return _tested[uuids]
            cachedir.keep(name, {_PASSED: True}, logging.INFO)
        _tested[uuids] = ""
    return _tested[uuids]


def _problem(uuids: Sequence[str]) -> str:
    nonce, seed = secrets.token_hex(16), secrets.randbelow(1 << 30)
    job = {"devices": list(uuids), "seed": seed, "nonce": nonce}
    problem = children.prove("vkpar.comm.carriertest", job, children.proof(nonce, [seed, len(uuids)]))
    if problem:
        _log.warning("the self-test of copies between the cards failed: %s", problem)
    return problem


def _file_of(ranks: Sequence[DeviceInfo]) -> str:
    cards = [(info.device_uuid, info.driver_version) for info in ranks]
    return cachedir.named("peer", {"vkpar": __version__, "boot": _boot(), "cards": cards})


def _boot() -> str:
    """Return what names the machine's latest start: after one, other settings may keep cards apart."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
