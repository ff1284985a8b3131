"""A worker: applies its last layers, then answers calls of its one user until it is killed.

The host decides whether it serves one call or many: it kills the process, or sends another call.
"""

import io
import os
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from sandbox.denials.paths import PathRules
from sandbox.denials.record import Recorder
from sandbox.errors import LoadError
from sandbox.frames import FrameKind
from sandbox.inside.confine import WorkerLayers
from sandbox.inside.process_state import KernelLimits, ProcessState
from sandbox.inside.program import Channel, Program
from sandbox.inside.shared_calls import SharedCalls
from sandbox.outcome import Denial
from sandbox.policy import Limits

__all__ = ["Birth", "run_worker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """State that a zygote passes to each of its workers.

    Attributes:
        program: The program that serves calls.
        layers: The layers to add to the inherited ones.
        rules: Path rules that explain denials.
        recorder: Recorder of the guard's denials, or None without a guard.
        parked: Socket for the worker's announcement.
    """

    program: Program
    layers: WorkerLayers
    rules: PathRules
    recorder: Recorder | None
    parked: socket.socket


def run_worker(birth: Birth, *, parent: int, warm: bool) -> NoReturn:
    """Run as one worker. Never returns and never raises: the process ends here.

    Args:
        birth: State from the zygote.
        parent: Process id of the zygote.
        warm: Whether there is time to use libraries once more beforehand.
    """
    status = 1
    try:
        channel = _get_ready(birth, parent=parent, warm=warm)
        if channel is not None:
            birth.layers.take_limits(birth.layers.limits)
            _serve(birth, channel)
            birth.program.finish()
        status = 0
    except BaseException:  # noqa: BLE001 - the last stop: whatever it was, the host must read about it
        traceback.print_exc()
    finally:
        os._exit(status)


def _serve(birth: Birth, channel: Channel) -> None:
    """Answer one call after the other, until the host disconnects.

    The exit of a process takes milliseconds of the processor on which the host then wakes up. So the host
    disconnects from a worker before it kills it only if the program has something to finish.
    """
    found, limits, goes_on = ProcessState.now(), birth.layers.limits, False
    bounds: KernelLimits | None = None

    def apply(kind: FrameKind, value: object) -> None:
        nonlocal limits, bounds
        if kind is FrameKind.LIMITS:
            limits, bounds = _limits(value), None
            birth.layers.take_limits(limits)
        elif kind is FrameKind.RENEW:
            birth.layers.renew_limits(limits, **_used(value))

    while (frame := _next(birth, channel, goes_on=goes_on)) is not None:
        if frame[0] is FrameKind.JOIN:
            # From here on the program's own loop waits for calls. The host reads nothing on this connection.
            channel.retire()
            shared = SharedCalls(
                connection=channel.connection,
                rules=birth.rules,
                recorder=birth.recorder,
                found=found,
                apply=apply,
            )
            first = shared.begin(frame[2])
            birth.program.serve_many(first, channel.connection, shared.joined)
            return
        if frame[0] is not FrameKind.CALL:
            apply(frame[0], frame[1])
        else:
            number, call, lasts = _numbered(frame[1])
            goes_on |= lasts
            if bounds is None:
                bounds = KernelLimits()
            else:
                bounds.begin()
            if birth.recorder is not None:
                birth.recorder.turn_to(channel.denied)
            value = birth.program.serve(call, channel)
            found.flush()
            # Part of the answer: a tool may forge an answer and continue, and a worker that is still busy
            # with one call must not get the next.
            is_ready = found.restore(goes_on=goes_on) and bounds.restore()
            channel.answer(value, ready_after=number if is_ready else None)
            channel = channel.renewed()
            if birth.recorder is not None:
                # A denial between two calls belongs to no call, and a worker that sends then is killed.
                birth.recorder.turn_to(_unheard)


def _next(birth: Birth, channel: Channel, *, goes_on: bool) -> tuple[FrameKind, object, list[int]] | None:
    if goes_on:
        birth.program.wait(channel.connection)
    return channel.receive()


def _unheard(_denial: Denial) -> None:
    """Discard a denial."""


def _get_ready(birth: Birth, *, parent: int, warm: bool) -> Channel | None:
    """Confine and park this process; report a failure to the host, which would only see its exit."""
    try:
        birth.layers.apply(parent=parent)
        return _park(birth, warm=warm)
    except LoadError as error:
        _announce_failure(birth.parked, str(error))
    except Exception as error:  # noqa: BLE001 - whatever it was, a call waits for a worker
        traceback.print_exc()
        _announce_failure(birth.parked, f"worker not ready: {type(error).__name__}: {error}")
    return None


def _announce_failure(parked: socket.socket, reason: str) -> None:
    # The name of a file may hold invalid UTF-8.
    parked.send(f"failed: {reason}".encode(errors="backslashreplace")[:60_000])


def _numbered(value: object) -> tuple[int, object, bool]:
    """Return the number of a call, the call, and whether its background work continues after it."""
    if not isinstance(value, Mapping):
        raise TypeError("the host sent a call that is not an object")
    return int(value["number"]), value["call"], bool(value.get("goes_on"))


def _limits(value: object) -> Limits:
    if not isinstance(value, Mapping):
        raise TypeError(f"the host sent limits that are not an object: {value!r}")
    return Limits(**value)


def _used(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise TypeError(f"the host sent what has been used as no object: {value!r}")
    return {"cpu_s": float(value["cpu_s"]), "data_bytes": int(value["data_bytes"])}


def _park(birth: Birth, *, warm: bool) -> Channel:
    """Get ready, and hand the host its end of the connection and of the output pipe."""
    # The host learns the process id from the kernel (SO_PEERCRED of this pair), not from us.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    channel = Channel(ours, birth.rules, birth.recorder)
    if birth.recorder is not None:
        birth.recorder.begin(channel.denied)
    birth.program.prepare(warm=warm)
    read, write = os.pipe()
    os.dup2(write, 1)
    os.dup2(write, 2)
    # Line-buffered, so that output is not lost when a call is killed, and stays in order with its errors.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    socket.send_fds(birth.parked, [b"parked"], [theirs.fileno(), read])
    for descriptor in (theirs.detach(), read, write, birth.parked.detach()):
        os.close(descriptor)
    return channel
