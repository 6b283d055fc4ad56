"""Selectors, on made-up machines."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkpar import DeviceInfo, InvalidUsageError
from vkpar.vulkan.machine import selector


def fake(index: int, name: str, kind: str = "discrete", **changes: object) -> DeviceInfo:
    """Return a made-up device with identities of its own."""
    values: dict[str, object] = {entry.name: None for entry in dataclasses.fields(DeviceInfo)}
    values |= {
        "index": index,
        "name": name,
        "type": kind,
        "vendor": "Acme",
        "driver_name": "acme driver",
        "driver_info": "1.2.3",
        "driver_uuid": str(uuid.UUID(int=index + 100)),
        "device_uuid": str(uuid.UUID(int=index + 1)),
        "pci_address": None if kind == "cpu" else f"0000:{index + 1:02x}:00.0",
    }
    return DeviceInfo(**(values | changes))  # type: ignore[arg-type]


A770 = fake(0, "Intel(R) Arc(tm) A770", vendor="Intel", driver_name="Intel open-source Mesa driver")
RADV = fake(1, "AMD Radeon RX 7900 (RADV NAVI31)", vendor="AMD", driver_name="radv")
AMDVLK = fake(
    2,
    "AMD Radeon RX 7900",
    vendor="AMD",
    driver_name="AMD open-source driver",
    pci_address=RADV.pci_address,
)
IGPU = fake(3, "AMD Radeon 780M", "integrated", vendor="AMD", driver_name="radv")
LAVA = fake(4, "llvmpipe (LLVM 15.0.6, 256 bits)", "cpu", vendor="Mesa", driver_name="llvmpipe")
SWIFT = fake(5, "SwiftShader Device (Subzero)", "cpu", vendor="Google", driver_name="SwiftShader driver")
MACHINE = [A770, RADV, AMDVLK, IGPU, LAVA, SWIFT]


def chosen(text: str, devices: list[DeviceInfo] | None = None) -> list[int]:
    """Return the indices that ``text`` selects."""
    return [info.index for info in selector.select(text, MACHINE if devices is None else devices)]


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("0", [0]),
        ("3&0", [3, 0]),
        ("llvmpipe", [4]),
        ("LLVMPIPE", [4]),
        (" llvmpipe * 2 & swiftshader ", [4, 4, 5]),
        ("swiftshader&llvmpipe*2", [5, 4, 4]),
        ("llvmpipe&llvmpipe", [4, 4]),
        ("amd", [1, 2, 3]),  # by vendor: several devices, in enumeration order, a card shown twice included
        ("amd*2", [1, 1, 2, 2, 3, 3]),
        ("radv", [1, 3]),  # by driver
        ("google", [5]),
        ("1.2.3&4", [0, 1, 2, 3, 4, 5, 4]),  # a driver version
        ("arc(tm)", [0]),
        ("cpu", [4, 5]),
        ("gpu", [0, 1, 3]),  # the second driver's view of the card is left out
        ("all", [0, 1, 3, 4, 5]),
        ("GPU*2&all", [0, 0, 1, 1, 3, 3, 0, 1, 3, 4, 5]),
        ("0000:02:00.0", [1, 2]),
        ("02:00.0", [1, 2]),
        ("0000:04:00.0*3", [3, 3, 3]),
    ],
)
def test_parts(text: str, indices: list[int]) -> None:
    assert chosen(text) == indices


def test_uuids_in_either_case_name_devices_and_drivers() -> None:
    assert chosen(SWIFT.device_uuid) == [5]
    assert chosen(LAVA.device_uuid.upper() + "*2") == [4, 4]
    assert chosen(RADV.driver_uuid) == [1]


def test_digits_are_always_an_index() -> None:
    numbered = [fake(0, "card 7"), fake(1, "card 1")]
    assert chosen("1", numbered) == [1]
    with pytest.raises(InvalidUsageError):
        chosen("7", numbered)


@pytest.mark.parametrize(
    "text",
    ["", " ", "&", "0&", "&0", "0&&1", "*", "*2", "0*", "0*0", "0*-1", "0*x", "0*1.5", "0*2*2", "0*65", "0*1000000000"],
)
def test_malformed_parts(text: str) -> None:
    with pytest.raises(InvalidUsageError, match="selector"):
        chosen(text)


@pytest.mark.parametrize("text", ["9", "nvidia", "0&nvidia", "09:00.0", str(uuid.UUID(int=77)), "llvmpipe2"])
def test_no_match_lists_what_there_is(text: str) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        chosen(text)
    for info in MACHINE:
        assert info.name in str(caught.value)


def test_gpu_without_a_gpu_says_what_there_is() -> None:
    with pytest.raises(InvalidUsageError, match="llvmpipe"):
        chosen("gpu", [LAVA])


def test_too_many_devices() -> None:
    with pytest.raises(InvalidUsageError, match="65"):
        chosen("0*64&1")
    assert len(chosen("0*64")) == 64


@pytest.mark.parametrize(
    ("devices", "indices"),
    [
        (MACHINE, [0, 1]),
        ([IGPU, LAVA, SWIFT], [3]),
        ([SWIFT, LAVA], [5, 4]),
        ([AMDVLK, RADV, LAVA], [2]),
        ([fake(0, "vgpu", "virtual"), LAVA], [0]),
        ([fake(7, "npu", "other")], [7]),
        ([], []),
    ],
)
def test_default(devices: list[DeviceInfo], indices: list[int]) -> None:
    assert [info.index for info in selector.default(devices)] == indices


def test_a_card_is_known_by_address_or_by_uuid() -> None:
    twin = fake(6, "same uuid", device_uuid=A770.device_uuid)
    other = fake(7, "neither")
    assert selector.without_duplicates([A770, twin, other, RADV, AMDVLK]) == [A770, other, RADV]


@given(st.lists(st.tuples(st.sampled_from(range(6)), st.integers(1, 4)), min_size=1, max_size=8))
def test_parts_are_never_merged(parts: list[tuple[int, int]]) -> None:
    text = "&".join(f"{index}*{times}" for index, times in parts)
    assert chosen(text) == [index for index, times in parts for _ in range(times)]


@given(st.text(alphabet="0123456789*&:.- abcdefglmpuv٣²", max_size=12))
def test_any_text_selects_or_is_refused(text: str) -> None:
    with contextlib.suppress(InvalidUsageError):
        assert set(chosen(text)) <= set(range(6))


def test_names_select_their_device_alone() -> None:
    devices = [A770, RADV, AMDVLK]
    for device in devices:
        names = selector.names(device, devices)
        assert names[0] == str(device.index)
        for name in names:
            assert selector.select(name, devices) == [device]
    assert "arc" in selector.names(A770, devices)


def test_what_matches_nothing_says_what_would() -> None:
    with pytest.raises(InvalidUsageError) as caught:
        chosen("gpu", [LAVA, SWIFT])
    message = str(caught.value)
    assert message.startswith(
        "no device matches 'gpu'; there are: 4: llvmpipe (LLVM 15.0.6, 256 bits) (Mesa, llvmpipe); 5"
    )
    assert message.endswith(". They are named 4 or llvmpipe, 5 or swiftshader; several: 4&5, 4*2, all, cpu")
    with pytest.raises(InvalidUsageError, match=r"several: 0&5, 0\*2, all, gpu, cpu$"):
        chosen("radeonn")
    with pytest.raises(InvalidUsageError, match="no device matches 'all'; there are no devices at all"):
        chosen("all", [])
