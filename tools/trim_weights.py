#!/usr/bin/env python3
"""Write the demo's model as one small file, for machines without a network: ``vkpar demo --weights FILE``.

The file holds every encoder layer in float32, the rows of the embedding tables that the sentences use, and the
sentences with their tokens, so that neither the model's package nor a tokenizer is needed to run it.
"""

from __future__ import annotations

import argparse
import sys

from vkpar.demo import weights
from vkpar.errors import VkparError

LIMIT = 48_000_000


def main(arguments: list[str] | None = None) -> int:
    """Write the file that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="where to write, such as minilm-demo.safetensors")
    parser.add_argument("--sentence", action="append", help="a sentence instead of the demo's own; may be repeated")
    options = parser.parse_args(arguments)
    try:
        model = weights.load_package(options.sentence or weights.SENTENCES)
        nbytes = weights.save_file(model, options.file)
    except (VkparError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.file}: {nbytes / 1e6:.1f} MB, {len(model.sentences)} sentences, {model.tokens} tokens")
    if nbytes >= LIMIT:
        print(f"error: more than {LIMIT / 1e6:.0f} MB; use fewer or shorter sentences", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
