"""Text by a Llama-shaped model of a file, split over the devices: ``python examples/generate.py --help``.

Without --model, it makes a tiny model with random weights, generates on one device and split over two ranks of it, and
checks that both give the same tokens.
"""

import argparse
import io
import json
import logging
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

import vkpar
from vkpar.parallel.models import SPLITS, Generation, Llama, ModelFile, Sampling, Texts, open_model, parse_ids, tiny
from vkpar.parallel.models.generating import graph, read_prompts, room_for, summary
from vkpar.parallel.models.loading import MOST_SEQUENCES
from vkpar.vulkan.machine.selector import default, select


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--model", help="a folder with config.json and safetensors, or a GGUF file")
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", help="the text to go on with")
    prompt.add_argument(
        "--prompts", type=Path, metavar="FILE", help="several texts at once: a file with a prompt a line"
    )
    prompt.add_argument("--tokens", help="token ids in its place, such as 1,5,9")
    parser.add_argument("--steps", type=int, help="how many tokens (default 64; 24 without --model)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest token (default)")
    parser.add_argument("--top-k", type=int, default=0, help="draw from so many tokens (0: all)")
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="draw from the likeliest tokens with this sum (1: all)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", help="which devices, such as 0&1; see vkpar devices")
    parser.add_argument("--split", help=f"one of {', '.join(SPLITS)} (default auto)")
    parser.add_argument("--ratios", default="speed", help="speed (default), memory, even, or numbers such as 3,1")
    parser.add_argument("--strict", action="store_true", help="no other split where this one is not possible")
    parser.add_argument("--explain", action="store_true", help="show the plan of the split")
    parser.add_argument("--halves", help="with --split tensor, prompts in two halves: auto (default), on or off")
    parser.add_argument("--wire", help="how sums cross links: f16, bf16, f32 or q8")
    parser.add_argument("--context", type=int, help="tokens to make room for (default: what is needed)")
    parser.add_argument("--cache", default="auto", help="type of the keys and values that are kept")
    parser.add_argument("--dtype", help="convert weights that are not quantised: float16, bfloat16 or float32")
    parser.add_argument("--inputs", help="a prompt's rows are rounded to: float32 or float16 (with --logits float32)")
    parser.add_argument("--logits", type=Path, help="write the prompt's logits, (T, vocabulary) float32, to this .npy")
    parser.add_argument("--ignore-end", action="store_true", help="go on after a token that ends the text")
    parser.add_argument("--profile", action="store_true", help="show where the time of the steps goes")
    parser.add_argument("--mpi", action="store_true", help="under mpiexec: split over the devices of all processes")
    parser.add_argument("--json", action="store_true", help="print tokens, rates and the plan as JSON")
    return parser.parse_args()


def load(
    file: ModelFile, comm: vkpar.Communicator, options: argparse.Namespace, stack: ExitStack, context: int, texts: int
) -> Llama:
    """Put the weights on the devices, with a bar on a terminal."""
    columns = (TextColumn("loading"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=file.weights.nbytes)
        return stack.enter_context(
            file.load(
                comm,
                mode=options.split or "auto",
                ratios=options.ratios,
                strict=options.strict,
                context=context,
                sequences=min(texts, MOST_SEQUENCES),
                cache_dtype=options.cache,
                dtype=options.dtype,
                inputs=options.inputs or ("auto" if options.logits is None else "float32"),
                halves=options.halves or "auto",
                progress=lambda _, nbytes: bar.advance(task, nbytes),
            )
        )


def show(generation: Generation, file: ModelFile, options: argparse.Namespace) -> None:
    """Run the generation, and print its text as it comes; token ids where the prompt was of ids."""
    if options.json:
        list(generation)
        return
    pieces = (f"{token} " for token in generation)
    if options.tokens is None:
        print(options.prompt, end="", flush=True)
        pieces = file.tokenizer().stream(generation, after=generation.prompt)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def show_all(generation: Generation, file: ModelFile, options: argparse.Namespace) -> None:
    """Run several texts at once, and print each with its rates as soon as it and those before it have ended."""
    words = file.tokenizer()
    for number, text in enumerate(generation.in_order()):
        if not options.json:
            print(words.decode([*generation.prompt[number], *text.tokens]))
            print(f"  [{number + 1}] {text.rates}")


def world(options: argparse.Namespace) -> Any:
    """Return the communicator of all processes that mpiexec started; None where there are none."""
    if not options.mpi:
        return None
    from mpi4py.MPI import COMM_WORLD

    return COMM_WORLD


def prompt_of(file: ModelFile, options: argparse.Namespace) -> list[Any]:
    """Return the ids of the prompt, or of each of several."""
    if options.tokens is not None:
        return parse_ids(options.tokens)
    if options.prompts is not None:
        return [file.tokenizer().encode(line) for line in read_prompts(options.prompts)]
    if options.prompt is None:
        raise vkpar.InvalidUsageError("give a --prompt, --prompts or --tokens")
    return file.tokenizer().encode(options.prompt)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Generate what the options ask for; return the tokens, rates and plan. What is wrong shows before the load."""
    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    steps = 64 if options.steps is None else options.steps
    if options.logits is not None and not options.logits.parent.is_dir():
        raise vkpar.InvalidUsageError(f"--logits: there is no folder {options.logits.parent}")
    if options.logits is not None and options.prompts is not None:
        raise vkpar.InvalidUsageError("--logits are of one prompt; give a --prompt, or --tokens")
    if options.halves == "on" and options.split != "tensor":
        raise vkpar.InvalidUsageError("--halves on needs --split tensor, whose ranks wait for each other's sums")
    with ExitStack() as stack:
        file = stack.enter_context(open_model(options.model))
        prompt = prompt_of(file, options)
        several = options.prompts is not None
        context = max(room_for(file.config, each, steps, options.context) for each in (prompt if several else [prompt]))
        devices = vkpar.open_devices(options.devices)
        for device in devices:
            stack.callback(device.close)
        comm = stack.enter_context(vkpar.Communicator(devices, wire=options.wire, mpi=world(options)))
        model = load(file, comm, options, stack, context, len(prompt) if several else 1)
        if comm.local_ranks.start > 0:  # the first process prints
            sys.stdout = io.StringIO()
        elif options.explain:
            print(model.plan, file=sys.stderr)
        if options.logits is not None:
            np.save(options.logits, model.prefill(prompt, logits=True))
            model.rewind()
        if several:
            with Texts(model) as texts:
                texts.warm_up(max(map(len, prompt)))
        else:
            model.warm_up(len(prompt))
        generation = Generation(model, prompt, steps, sampling, () if options.ignore_end else file.config.stops)
        with comm.profile() if options.profile else ExitStack() as profile:
            (show_all if several else show)(generation, file, options)
        tokens, pp, tg = generation.tokens, generation.prompt_rate, generation.step_rate
        if not options.json:
            print(summary(generation, model))
        if options.profile:
            print(profile if comm.nranks > 1 else graph(model), file=sys.stderr)
        return {"tokens": tokens, "pp": pp, "tg": tg, "plan": {**model.plan.as_dict(), **model.placed()}}


def check(options: argparse.Namespace) -> dict[str, Any]:
    """Generate with a tiny model on one device, and split over two ranks of it; return what the latter made."""
    for name in ("prompt", "prompts", "split", "wire", "halves"):
        if getattr(options, name):
            raise vkpar.InvalidUsageError(f"--{name} needs a --model; without one, a tiny model is made and checked")
    found, named = vkpar.enumerate_devices(), options.devices or os.environ.get("VKPAR_DEVICES")
    index = (select(named, found) if named else default(found))[0].index  # the first device; no other is opened
    options.tokens, options.wire = "1,5,9" if options.tokens is None else options.tokens, "f32"
    options.steps = 24 if options.steps is None else options.steps
    with tempfile.TemporaryDirectory() as folder:
        options.model = folder
        tiny.write_folder(Path(folder))
        options.devices, options.split = str(index), "single"
        alone = run(options)
        options.devices, options.split = f"{index}*2", "tensor"
        split = run(options)
    assert split["tokens"] == alone["tokens"]
    return split


def main() -> None:
    logging.basicConfig(format="%(message)s")
    options = arguments()
    checks = options.model is None
    try:
        found = check(options) if checks else run(options)
        if options.json:
            print(json.dumps(found))
        if checks:
            text = "OK: the same tokens on one device and split over two ranks"
            print(text, file=sys.stderr if options.json else sys.stdout)
    except (vkpar.VkparError, OSError) as error:
        sys.exit(f"generate.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
