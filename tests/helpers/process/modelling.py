"""A model over several processes, run by mpiexec: the same tokens and logits as in process 0 alone, on as many ranks.

    mpiexec -n 2 python tests/helpers/process/modelling.py tensor:even,layer:1:1 LS L

The letters name each process' devices, as in ``spanning.py``.
"""

from __future__ import annotations

import faulthandler
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from helpers.process.spanning import devices_of
from mpi4py.MPI import COMM_WORLD as WORLD

import vkpar
from vkpar.parallel import ColumnParallelLinear, Sharded, shard
from vkpar.parallel.models import Generation, ModelFile, Sampling, open_model, tiny

PROMPT = [int(token) for token in np.random.default_rng(3).integers(0, 300, 40)]
_STEPS = 10


def generated(file: ModelFile, comm: vkpar.Communicator, mode: str, ratios: Any) -> tuple[Any, ...]:
    """Return the split, the logits after a prompt, likeliest tokens, and drawn ones."""
    with file.load(comm, mode=mode, ratios=ratios, strict=True, context=128) as model:
        model.warm_up(len(PROMPT))
        model.prefill(PROMPT)
        logits = model.next_logits()
        model.rewind()
        likeliest = list(Generation(model, PROMPT, _STEPS))
        model.rewind()
        drawn = list(Generation(model, PROMPT, _STEPS, Sampling(0.9, seed=5)))
        assert model.plan is not None
        found = model.plan.mode, model.plan.ratios, model.weights_nbytes, logits.tobytes(), likeliest, drawn
    return *found, together(file, comm, mode, ratios, [likeliest, drawn])


def together(file: ModelFile, comm: vkpar.Communicator, mode: str, ratios: Any, alone: list[list[int]]) -> Any:
    """Return the tokens of texts at once, of which the first two are those that were made alone."""
    samplings = [Sampling(), Sampling(0.9, seed=5), Sampling()]
    with file.load(comm, mode=mode, ratios=ratios, strict=True, context=128, sequences=2) as model:
        texts = Generation(model, [PROMPT, PROMPT, PROMPT[:7]], _STEPS, samplings)
        list(texts)
    assert texts.tokens[:2] == alone
    return texts.tokens


def moves(comm: vkpar.Communicator) -> list[np.ndarray[Any, Any]]:
    """Return arrays that went from one way of lying on ranks to others, whole again."""
    values = np.arange(35 * 12, dtype=np.float32).reshape(35, 12)
    made: list[Sharded] = [shard(values, comm), shard(values, comm, axis=0), shard(values, comm, axis=1)]
    made += [made[1].resplit(1), made[2].resplit(0), made[0].resplit(1)]
    found = [each.mirrored().numpy() for each in made]
    assert all((each == values).all() for each in found)
    return found


def columns(comm: vkpar.Communicator) -> list[np.ndarray[Any, Any]]:
    """Return what a layer gives that gathers its columns on every rank, though a process may have one rank alone."""
    weight, x = np.arange(24, dtype=np.float32).reshape(8, 3), np.ones((2, 3), np.float32)
    given: list[Any] = [None] * comm.nranks
    for rank, device in zip(comm.local_ranks, comm.devices, strict=True):
        given[rank] = device.array(x)
    made = ColumnParallelLinear(weight, comm=comm, gather_output=True)(given)
    found = [part.numpy() for part in made if part is not None]
    assert len(found) == len(comm.devices)
    assert all((each == x @ weight.T).all() for each in found)
    return found


def main() -> None:
    """Generate by each split, over all processes and in the first alone."""
    splits, *letters = sys.argv[1:]
    faulthandler.dump_traceback_later(120, exit=True)
    with tempfile.TemporaryDirectory() as folder:
        # A row split slices weights of 256 rows and columns.
        wide = replace(tiny.SIZES, hidden=256, intermediate=320)
        tiny.write_folder(Path(folder), wide if "row" in splits else tiny.SIZES)
        file = open_model(folder)
        wanted = [
            (mode, ratios.replace(":", ",")) for mode, _, ratios in (one.partition(":") for one in splits.split(","))
        ]
        with vkpar.Communicator(devices_of(letters[WORLD.rank]), wire="f32", mpi=WORLD) as comm:
            moves(comm)
            columns(comm)
            several = [generated(file, comm, *split) for split in wanted]
        assert WORLD.allgather(several) == [several] * WORLD.size
        if WORLD.rank == 0:
            with vkpar.Communicator(devices_of("".join(letters)), wire="f32") as comm:
                for split, found in zip(wanted, several, strict=True):
                    measured = split[1] in ("speed", "memory") or split[0] == "auto"
                    assert measured or generated(file, comm, *split) == found, split
        file.close()
    print("done", flush=True)


if __name__ == "__main__":
    main()
