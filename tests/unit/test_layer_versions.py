"""What a validation layer is too old for is left out, without Vulkan."""

from __future__ import annotations

import logging

import pytest

from vkpar.vulkan.machine import matrices
from vkpar.vulkan.machine.instance import Instance


def watched(version: tuple[int, int, int], *, validating: bool = True) -> Instance:
    """Return an instance whose layer has a version; it is never opened."""
    made = Instance.__new__(Instance)
    made.validating, made._layer_version, made._unknown = validating, version, frozenset()
    return made


@pytest.mark.parametrize(
    ("version", "unknown"),
    [
        ((1, 3, 239), set(matrices.EXTENSIONS)),
        ((1, 3, 275), {matrices.NV2, matrices.BFLOAT16}),
        ((1, 4, 304), {matrices.BFLOAT16}),
        ((1, 4, 363), set()),
    ],
)
def test_structs_that_a_layer_does_not_know_are_left_out(
    version: tuple[int, int, int], unknown: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    instance = watched(version)
    with caplog.at_level(logging.WARNING, "vkpar"):
        for _ in range(2):  # said once
            assert instance.unknown_to_layer(matrices.EXTENSIONS, matrices.FIRST_LAYERS) == unknown
    assert len(caplog.messages) == len(unknown)
    assert all(".".join(map(str, version)) in message for message in caplog.messages)


def test_without_validation_nothing_is_left_out() -> None:
    instance = watched((0, 0, 0), validating=False)
    assert instance.unknown_to_layer(matrices.EXTENSIONS, matrices.FIRST_LAYERS) == frozenset()
