"""Sentences by meaning: all-MiniLM-L6-v2, split over the devices: ``python examples/embed.py --help``.

Without arguments, it embeds a few sentences on the default devices, and checks that those that say the same thing are
the nearest to each other.
"""

import argparse
import logging
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

import vkpar
from vkpar.parallel.models import SPLITS, nearest, open_encoder
from vkpar.text import units

SENTENCES = [
    "The dog sleeps in the kitchen.",
    "A puppy takes a nap beside the stove.",
    "It will rain tomorrow.",
    "Take an umbrella, wet weather is coming.",
    "The bakery sells fresh bread.",
    "You can buy a warm loaf at the baker's.",
]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--text", type=Path, help="a file with one sentence a line (default: a few bundled ones)")
    parser.add_argument("--query", help="print the sentences that are nearest to this text")
    parser.add_argument("--top", type=int, default=5, help="how many (default 5)")
    parser.add_argument(
        "--model", type=Path, help="a folder that sentence-transformers saved (default: MiniLM's package)"
    )
    parser.add_argument("--devices", help="which devices, such as 0&1; see vkpar devices")
    parser.add_argument("--split", default="auto", help=f"one of {', '.join(SPLITS)} (default auto)")
    parser.add_argument("--ratios", default="even", help="even, memory, speed, or numbers such as 3,1")
    parser.add_argument("--wire", help="how sums cross links: f16, bf16, f32 or q8")
    parser.add_argument("--batch", type=int, default=32, help="sentences that run together (default 32)")
    return parser.parse_args()


def progress(*columns: ProgressColumn) -> Progress:
    """Return bars on a terminal's errors, which vanish in the end; elsewhere they show nothing."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def embed(options: argparse.Namespace, texts: list[str]) -> np.ndarray:
    """Return the embeddings of texts, (texts, hidden), each of length 1."""
    with ExitStack() as stack:
        file = stack.enter_context(open_encoder(options.model))
        tokens = file.tokens(texts)
        devices = [stack.enter_context(device) for device in vkpar.open_devices(options.devices)]
        comm = stack.enter_context(vkpar.Communicator(devices, wire=options.wire))
        print(f"loading {units(file.weights.nbytes)} of weights", file=sys.stderr)
        with progress(DownloadColumn(binary_units=True)) as bar:
            task = bar.add_task("loading", total=file.weights.nbytes)
            model = file.load(
                comm,
                mode=options.split,
                ratios=options.ratios,
                batch=options.batch,
                progress=lambda _, nbytes: bar.advance(task, nbytes),
            )
        start, count = time.perf_counter(), sum(map(len, tokens))
        print(f"embedding {len(texts)} texts, {count} tokens", file=sys.stderr)
        with progress(MofNCompleteColumn(), TimeRemainingColumn()) as bar:
            task = bar.add_task("embedding", total=len(texts))
            found = model.embed(tokens, progress=lambda number: bar.advance(task, number))
        took = time.perf_counter() - start
        split = f"{model.placement.mode} split over " if len(devices) > 1 else ""
        where = " + ".join(device.name for device in devices)
        print(f"{len(texts)} texts, {count} tokens in {took:.2f} s ({count / took:.0f} tokens/s): {split}{where}")
        return found


def show(texts: list[str], found: list[tuple[int, float]]) -> None:
    table = Table("score", "no", "sentence", box=SIMPLE_HEAD, show_edge=False)
    for index, cosine in found:
        table.add_row(f"{cosine:.3f}", str(index + 1), texts[index])
    Console(markup=False, highlight=False).print(table)


def run(options: argparse.Namespace) -> None:
    if options.top < 1:
        raise vkpar.InvalidUsageError(f"--top is a whole number from 1, not {options.top}")
    texts = SENTENCES
    if options.text is not None:
        texts = [line.strip() for line in options.text.read_text("utf-8").splitlines() if line.strip()]
    if not texts:
        raise vkpar.InvalidUsageError(f"{options.text} has no sentences: one a line is needed")
    if options.query is not None:
        *embeddings, query = embed(options, [*texts, options.query])
        show(texts, nearest(np.array(embeddings), query, options.top))
    elif options.text is not None:
        raise vkpar.InvalidUsageError("give a --query: the sentences nearest to it are printed")
    else:
        embeddings = embed(options, texts)
        pairs = [nearest(embeddings, embedding, 2)[1][0] for embedding in embeddings]  # the nearest is itself
        assert pairs == [1, 0, 3, 2, 5, 4], pairs
        show(texts, nearest(embeddings, embeddings[0]))
        print("OK: each sentence is nearest to the one that says the same thing")


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    try:
        run(arguments())
    except (vkpar.VkparError, OSError, UnicodeDecodeError) as error:
        sys.exit(f"embed.py: {error}")
