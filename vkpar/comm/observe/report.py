"""A communicator's reports: its counters, and the flight recorder as JSON."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from vkpar.comm.engine.engine import Engine


def stats(engine: Engine) -> dict[str, Any]:
    """Return counters: collectives, cached command buffers, and the bridge's work.

    Raises:
        InvalidUsageError: the communicator is closed.
    """
    health, cache = engine.health, engine.cache
    with health.gate.lock():
        health.gate.check()
        return {
            "collectives": engine.sequence,
            "cached_programs": len(cache),
            "cached_batches": cache.batches,
            **engine.rig.bridge_counters(),
            "staging_bytes": engine.rig.arena.memory.nbytes,
        }


def dump(engine: Engine, path: str | os.PathLike[str] | None) -> str:
    """Return the flight recorder as JSON, and write it to ``path`` where that is given."""
    rig, health = engine.rig, engine.health
    names = rig.transport_names()
    transports = [names[rank] if rank >= 0 else "mpi" for rank in rig.queue_map.ranks]
    with health.gate.lock():  # a close in another thread waits
        alive = not engine.closed
        reached = rig.values() if alive else None
        bridge = rig.bridge_counters() if alive else None
    document = {
        "ranks": [
            {"rank": rank, "device": name, "transport": transports[queue], "reached": reached and reached[queue]}
            for queue, (rank, name) in enumerate(rig.places)
        ],
        "links": [{"src": x.src, "dst": x.dst, "kind": x.kind, "reason": x.reason} for x in rig.links],
        "closed": not alive,
        "failure": None if health.failure is None else str(health.failure),
        "timeout": health.timeout if math.isfinite(health.timeout) else None,
        "bridge": bridge,
        "operations": health.flights.document(rig.places, reached),
    }
    text = json.dumps(document, indent=1)
    if path is not None:
        Path(path).write_text(text + "\n")
    return text
