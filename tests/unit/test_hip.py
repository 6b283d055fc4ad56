"""HIP's names for CUDA's calls, by a library of a few lines in its place: it has two cards, and no memory."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.process.faulting import compiler
from helpers.vulkan.infos import fake_info

from vkpar import UnsupportedError, VulkanError, env
from vkpar.comm.rig.transports import peer
from vkpar.vulkan.peer import hip
from vkpar.vulkan.peer.cuda import DECLARATIONS

RADV = 3
_CARDS = """
#include <stdint.h>
#include <stdio.h>
int hipInit(unsigned flags) { return FAILS ? 100 : (int)flags; }
const char *hipGetErrorName(int status) {
    return status == 100 ? "hipErrorNoDevice" : status == 2 ? "hipErrorOutOfMemory" : 0;
}
int hipGetDeviceCount(int *count) { *count = 2; return 0; }
int hipDeviceGet(int *device, int number) { *device = 7 + number; return 0; }
int hipDeviceGetPCIBusId(char *text, int nbytes, int device) {
    return snprintf(text, nbytes, "0000:%02X:00.0", 0xa0 + device) < 0;
}
int hipDeviceCanAccessPeer(int *can, int one, int other) { *can = one < other; return 0; }
int hipDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(uintptr_t)(device + 1); return 0; }
int hipDevicePrimaryCtxRelease(int device) { return device < 7; }
int hipCtxPushCurrent(void *context) { return context == 0; }
int hipCtxPopCurrent(void **context) { *context = 0; return 0; }
int hipMemGetAllocationGranularity(size_t *nbytes, const int *kept, int which) {
    *nbytes = 4096;
    return !(kept[0] == 1 && kept[1] == 1 && kept[2] == 1 && kept[3] >= 7 && which == 1);
}
int hipMemCreate(uint64_t *handle, size_t nbytes, const void *kept, uint64_t flags) { return 2; }
int hipStreamCreateWithFlags(void **stream, unsigned flags) { *stream = (void *)(uintptr_t)0x5000; return flags != 1; }
int hipStreamDestroy(void *stream) { return stream != (void *)0x5000; }
int hipStreamQuery(void *stream) { return 600; }
int hipMemcpyDtoDAsync(uint64_t to, uint64_t from, size_t nbytes, void *stream) { return 0; }
int hipStreamWriteValue32(void *stream, uint64_t to, uint32_t value, unsigned flags) { return 0; }
int hipStreamWaitValue32(void *stream, uint64_t at, uint32_t value, unsigned flags, uint32_t mask) { return 0; }
"""


def _built(folder: Path, fails: bool) -> str:
    source, library = folder / "hip.c", folder / f"libhip{fails:d}.so"
    source.write_text(_CARDS)
    command = compiler()
    assert command is not None, "a C compiler is needed here, as for the package itself"
    subprocess.run([*command, "-shared", "-fPIC", f"-DFAILS={fails:d}", str(source), "-o", str(library)], check=True)
    return str(library)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    made = _built(tmp_path, fails=False)
    monkeypatch.setattr(hip.Hip, "_library", made)
    hip.load.cache_clear()
    yield made
    hip.load.cache_clear()


def test_every_function_has_a_name_of_hip() -> None:
    declared = hip.Hip._declarations
    assert declared.count(");") == DECLARATIONS.count(");")
    assert "cuMem" not in declared
    assert "_v2" not in declared
    assert all(ours in declared for ours in hip._DIFFERENT.values())


def test_cards_are_found_by_their_address(library: str) -> None:
    loaded = hip.load()
    near, far = (fake_info(pci_address=f"0000:{bus}:00.0") for bus in ("a7", "a8"))
    cards = loaded.card(near), loaded.card(far)
    assert cards[0] is not None
    assert cards[1] is not None
    assert [card.number for card in cards if card is not None] == [7, 8]
    assert cards[0].reaches(cards[1])
    assert not cards[1].reaches(cards[0])
    assert loaded.card(fake_info(pci_address="0000:b0:00.0")) is None
    assert loaded.masks
    assert all(loaded.functions)
    stream = cards[0].stream()
    assert not stream.idle()
    stream.close()
    with pytest.raises(VulkanError, match=r"hipMemCreate.*hipErrorOutOfMemory|hipErrorOutOfMemory.*hipMemCreate"):
        cards[0].memory(None, near, [0], 5000, [card for card in cards if card is not None])
    for card in cards:
        card.close()


def test_a_library_without_cards_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hip.Hip, "_library", _built(tmp_path, fails=True))
    with pytest.raises(UnsupportedError, match="hipInit says hipErrorNoDevice"):
        hip.Hip()
    monkeypatch.setattr(hip.Hip, "_library", str(tmp_path / "libnone.so"))
    with pytest.raises(UnsupportedError, match=r"libnone\.so cannot be used"):
        hip.Hip()


def test_it_is_tried_where_that_is_wanted(library: str) -> None:
    cards = [
        fake_info(number, driver_id=RADV, device_uuid=f"{number:032x}", pci_address=f"0000:a{7 + number}:00.0")
        for number in range(2)
    ]
    assert peer.reach(cards)[0] is None
    assert peer.reach(cards)[1].endswith("no copy engine is known that reaches other cards; VKPAR_PEER=try takes HIP's")
    with env.override(peer="try"):
        assert peer.reach(cards)[1] == "HIP: rank 1 does not reach rank 0's memory"
