#!/usr/bin/env python3
"""Write a tiny Llama or Qwen2 model with random weights, and a tokenizer trained on this project's pages.

``tools/make_tiny_model.py /tmp/tiny`` writes a folder, as transformers saves it; ``tools/make_tiny_model.py /tmp/t.gguf
--kind q8_0`` a GGUF file. ``examples/generate.py --model /tmp/tiny --prompt "The sum of"`` goes on with a text.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from vkpar.errors import VkparError
from vkpar.parallel.models import tiny
from vkpar.parallel.models.config import FAMILIES

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Write what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a folder, or a file that ends in .gguf")
    parser.add_argument("--family", default="llama", choices=tuple(FAMILIES))
    parser.add_argument("--kind", default="f16", choices=tiny.FILES, help="of a GGUF file's matrices (default f16)")
    parser.add_argument("--dtype", default="float32", help="of a folder's weights: float32, float16 or bfloat16")
    parser.add_argument("--hidden", type=int, default=256, help="width, a multiple of blocks (default 256)")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    config = replace(
        tiny.SIZES,
        family=options.family,
        layers=options.layers,
        hidden=options.hidden,
        intermediate=3 * options.hidden,
        heads=8,
        head_dim=options.hidden // 8,
        vocabulary=options.vocabulary,
        context=4096,
        tied=options.family != "llama",
    )
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    if options.path.suffix == ".gguf":
        rules = tiny.train_tokenizer(text, config.vocabulary)
        weights = tiny.weights(config, options.seed)
        tiny.write_gguf(options.path, replace(config, stops=(0,)), weights, options.kind, rules)
    else:
        config = tiny.write_folder(options.path, config, seed=options.seed, dtype=options.dtype, text=text)
    print(f"{options.path}: {config.describe()}")


if __name__ == "__main__":
    try:
        main()
    except (VkparError, OSError) as error:
        sys.exit(f"make_tiny_model.py: {error}")
