"""What a person reads where something is missing: what is wrong, and what to do."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.process.children import child_environment, run_child

import vkpar
from vkpar.errors import OutOfMemoryError, UnsupportedError, VulkanError
from vkpar.vulkan.machine import icd, manifests
from vkpar.vulkan.machine.instance import Instance

_ALONE = dict.fromkeys(("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES", "VK_LOADER_DRIVERS_SELECT"), None)


def said(**changes: str | None) -> str:
    """Return the error of listing devices in a process with such an environment."""
    done = run_child(
        "import vkpar\ntry:\n    vkpar.enumerate_devices()\nexcept vkpar.UnsupportedError as error:\n    print(error)",
        environment=child_environment(**(_ALONE | changes)),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_driver_variable_that_points_nowhere_is_named(tmp_path: Path) -> None:
    lost = tmp_path / "gone.json"
    text = said(VK_DRIVER_FILES=str(lost))
    assert f"VK_DRIVER_FILES={lost} names the only drivers" in text
    assert f"there is no {lost}. Correct the variable, or unset it" in text
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    assert "none of them loads (VK_LOADER_DEBUG=error says why)" in said(VK_DRIVER_FILES=str(broken))
    assert f"{broken} names no library" in said(VK_DRIVER_FILES=str(broken))
    assert "VK_ICD_FILENAMES is set and empty" in said(VK_ICD_FILENAMES="")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("variable", ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES"])
@pytest.mark.parametrize("text", ['{"ICD": {"library_path": "./lib.so"},}', '{"ICD": {"library_path": 5}}'])
def test_a_damaged_manifest_is_named(variable: str, text: str, tmp_path: Path) -> None:
    """The loader runs out of memory over the first, and crashes over the second; later ones leave them out."""
    broken = tmp_path / "broken.json"
    broken.write_text(text)
    done = run_child(
        "import vkpar\ntry:\n    vkpar.enumerate_devices()\nexcept vkpar.UnsupportedError as error:\n    print(error)",
        environment=child_environment(**(_ALONE | {variable: str(broken)})),
    )
    assert done.returncode == 0, done.stderr
    assert f"{broken}" in done.stdout + done.stderr
    assert "memory" not in done.stdout


def test_a_driver_that_was_asked_for_and_gave_no_device_is_a_warning(tmp_path: Path) -> None:
    lost = tmp_path / "gone.json"
    code = "import vkpar\nfor _ in range(2):\n    print(len(vkpar.enumerate_devices()))\nvkpar.open_devices('all')"
    added = ":".join(filter(None, (str(lost), os.environ.get("VK_ADD_DRIVER_FILES"))))
    done = run_child(code, environment=child_environment(VK_ADD_DRIVER_FILES=added))
    assert done.returncode == 0, done.stderr
    if not any(os.environ.get(name) for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")):
        assert done.stderr.splitlines() == [
            f"VK_ADD_DRIVER_FILES asks for the driver {lost}, which gave no device: it does not exist"
        ]


def test_drivers_asked_without_the_loader_say_what_it_finds() -> None:
    every = [manifest for manifest in (*manifests.named(), *manifests.installed()) if not manifest.problem]
    for manifest in every:
        why = icd.devices_of(manifest.library)
        text = said(VK_DRIVER_FILES=manifest.path)
        assert bool(why) == ("reaches no device" in text or "no Vulkan driver found" in text), (manifest, why, text)
    assert any(not icd.devices_of(manifest.library) for manifest in every)


def _instance(handles: list[Any] | VulkanError) -> Instance:
    class Loader:
        class lib:
            vkEnumeratePhysicalDevices = None

        def enumerate(self, *arguments: Any, **options: Any) -> list[Any]:
            if isinstance(handles, VulkanError):
                raise handles
            return handles

    made = object.__new__(Instance)
    made._vk, made._physical, made.handle = Loader(), None, None  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(
    "outcome", [[], VulkanError("VK_ERROR_INITIALIZATION_FAILED", "vkEnumeratePhysicalDevices")], ids=["none", "error"]
)
def test_a_driver_that_reaches_no_card_says_what_to_look_at(
    outcome: list[Any] | VulkanError, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in _ALONE:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UnsupportedError, match=r"reaches no device.*container.*--device /dev/dri.*/dev/dri/renderD"):
        _instance(outcome).physical_devices()
    monkeypatch.setenv("VK_DRIVER_FILES", "/x.json")
    with pytest.raises(UnsupportedError, match=r"VK_DRIVER_FILES=/x.json may keep other drivers"):
        _instance(outcome).physical_devices()


def test_other_failures_of_the_listing_stay_what_they_are() -> None:
    with pytest.raises(VulkanError, match="VK_ERROR_UNKNOWN"):
        _instance(VulkanError("VK_ERROR_UNKNOWN", "vkEnumeratePhysicalDevices")).physical_devices()


def test_more_than_the_heap_has_is_said_in_words(device: vkpar.Device) -> None:
    whole = device.info.memory_bytes
    with pytest.raises(OutOfMemoryError, match=r"does not fit .*heap \d+, has \d+ bytes .* in all") as caught:
        device.empty(2 * whole, "uint8")
    assert str(device) in str(caught.value)
    assert "iB)" in str(caught.value)
    assert "vkpar.plan_memory" in str(caught.value)
    assert caught.value.result == "VK_ERROR_OUT_OF_DEVICE_MEMORY"


def test_a_capability_that_is_never_turned_on_is_told_from_one_that_the_device_lacks(device: vkpar.Device) -> None:
    from vkpar.vulkan.pipelines.checks import lacking

    assert "vkpar turns on for no device" in lacking(str(device), ["Float16", "Addresses"])
    text = lacking(str(device), ["Float16"])
    assert f"which {device} does not have" in text
    assert "vkpar devices -v" in text


def test_two_devices_on_one_card_have_names_of_their_own() -> None:
    first, second = vkpar.open_devices("0*2")
    try:
        assert first.name == second.name
        assert str(first) != str(second)
        assert re.fullmatch(re.escape(first.name) + r" #\d+", str(first))
        assert str(first) in repr(first)
        second.close()
        with pytest.raises(vkpar.InvalidUsageError, match=re.escape(f"{second} is closed")):
            second.empty(1)
    finally:
        first.close()
        second.close()


def test_a_bad_selector_of_the_environment_names_the_variable(settings_override: Any) -> None:
    settings_override(devices="nonesuch")
    with pytest.raises(vkpar.InvalidUsageError, match="VKPAR_DEVICES='nonesuch': no device matches"):
        vkpar.open_devices()
