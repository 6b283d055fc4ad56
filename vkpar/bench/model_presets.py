"""Sizes of whole models that ``vkpar bench model`` knows by name, of other families than Llama."""

from __future__ import annotations

from typing import Final

from vkpar.parallel.models.config import Config

MODELS: Final = {
    "gemma3-270m": Config(
        "gemma3",
        18,
        640,
        2048,
        4,
        1,
        256,
        262_144,
        32_768,
        1e-6,
        1e6,
        tied=True,
        window=512,
        sliding=tuple(block % 6 != 5 for block in range(18)),
        local_theta=1e4,
    ),
    "30b-a3b": Config("qwen3moe", 48, 2048, 768, 32, 4, 128, 151_936, 40_960, 1e-6, 1e6, experts=128, active=8),
}
