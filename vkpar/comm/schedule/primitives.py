"""A rank's actions on one segment, named after the primitives of NCCL's kernels.

``recv`` reads slots that other ranks filled, ``reduce`` adds the rank's own elements, ``copy`` stores in the rank's
array, ``send`` fills a slot of the rank's own, which others read. See NCCL's ``src/device/primitives.h``.
"""

from __future__ import annotations

from vkpar.comm.schedule.steps import Forward, Reduce, Span


def send(span: Span, to: int, *, final: bool = False) -> Reduce:
    """Send the rank's own elements to slot ``to``; ``final`` says that nothing will be added to them."""
    return Reduce(span, own_at=0, out_slot=to, final=final)


def recv_reduce_send(span: Span, sources: tuple[int, ...], own_at: int | None, to: int) -> Reduce:
    """Send an unfinished sum to slot ``to``: that of the slots ``sources`` and, at place ``own_at``, the own elements.

    ``own_at`` None leaves the own elements out.
    """
    return Reduce(span, sources, own_at, out_slot=to)


def recv_reduce_copy_send(
    span: Span, sources: tuple[int, ...], own_at: int | None, to: int | None, *, stored: bool = True
) -> Reduce:
    """Finish the sum of the same terms as :func:`recv_reduce_send`; store it if ``stored``, and send it to slot ``to``.

    ``to`` is None where no other rank receives the sum.
    """
    return Reduce(span, sources, own_at, to_array=stored, out_slot=to, final=True)


def recv_copy_send(span: Span, source: int, to: int) -> Forward:
    """Store the finished sum that ``source`` holds and pass its bits on to slot ``to``."""
    return Forward(span, source, to)


def recv_copy(span: Span, source: int) -> Forward:
    """Store the finished sum that ``source`` holds."""
    return Forward(span, source)
