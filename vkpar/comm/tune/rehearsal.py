"""Programs for measuring, which no call of the communicator finds: recorded, run as often as wanted, freed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from vkpar.arrays.array import Array
from vkpar.comm.engine.engine import Engine
from vkpar.comm.engine.work import Work
from vkpar.comm.plan.choose import Plan
from vkpar.comm.record.entry import Entry
from vkpar.comm.record.kernels import ReduceSpec
from vkpar.comm.requests.collectives import Request
from vkpar.comm.requests.operands import Operands
from vkpar.comm.rig.arena import Slab
from vkpar.comm.schedule.steps import Step


class Rehearsal:
    """A collective that no call finds, freed at the end of the ``with`` block."""

    def __init__(self, engine: Engine, name: str, record: Callable[[], Entry], keep: object) -> None:
        self._engine = engine
        self._name = name
        self._record = record
        self._keep = keep

    def launch(self) -> Work:
        """Enqueue it once.

        Raises:
            CommunicatorError: the communicator has failed.
            InvalidUsageError: the communicator is closed.
        """
        return self._engine.launch_chosen(lambda: self._entry, self._name, self._keep)

    def __enter__(self) -> Rehearsal:
        self._entry = self._engine.hold(self._record)
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.let_go(self._entry)


def request_by(engine: Engine, request: Request, plan: Plan) -> Rehearsal:
    """Return a context in which ``request`` can be run by ``plan``, whatever the tuning says."""
    return Rehearsal(engine, request.name, lambda: engine.builder.entry(request, plan), request)


def steps_alone(
    engine: Engine, steps: Iterable[Step], spec: ReduceSpec, slab: Slab, operands: Operands, arrays: Sequence[Array]
) -> Rehearsal:
    """Return a context in which ``steps`` over ``operands``, parts of ``arrays``, can be run."""
    recorder = engine.builder.recorder
    return Rehearsal(engine, "steps", lambda: Entry({0: recorder.record(steps, spec, slab, operands)}), arrays)
