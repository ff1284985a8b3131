"""The program of the self-test: runs one act in a worker. It has a secret, as a careless framework might.

The secret is a descriptor and a variable of the process that imports this module. An attempt checks that
neither is left in a worker.

Not among the attempts, because the control would do harm: stopping or rebooting the machine, setting its
clock or name, loading modules and kernels, swap and quotas, kill(2) of all processes.
"""

import errno
import os
import signal
from collections.abc import Iterable, Mapping

from sandbox.denials.judge import GuardDenied
from sandbox.frames import FrameKind
from sandbox.inside.program import Channel
from sandbox.selftest.attempt import SECRET_FILE, Attempt, Surroundings
from sandbox.selftest.reading import READING
from sandbox.selftest.resources import RESOURCES
from sandbox.selftest.surviving import SURVIVING
from sandbox.selftest.tampering import TAMPERING
from sandbox.selftest.writing import WRITING

__all__ = ["ATTEMPTS", "HARMLESS", "PROGRAM", "Attacker"]

_careless = [os.open(os.environ[SECRET_FILE], os.O_RDONLY)] if SECRET_FILE in os.environ else []

ATTEMPTS = (*WRITING, *READING, *SURVIVING, *RESOURCES, *TAMPERING)
"""Every attempt that needs only the sandbox, in the order of the report."""

HARMLESS = {"id": None}
"""A call that does nothing, so that the next one in its worker is not the first."""


class Attacker:
    """Program that serves a call by running the act named in it."""

    def __init__(self, attempts: Iterable[Attempt]) -> None:
        self._attempts = {attempt.id: attempt for attempt in attempts}

    def begin(self, *_args: object, **_options: object) -> None:
        """Do nothing. Between two calls threads continue by themselves."""

    warm_up = prepare = wait = begin

    def load(self, config: Mapping[str, object]) -> object:
        """Load nothing: the acts were imported with the module."""
        return {"acts": len(self._attempts), **config}

    def serve(self, call: object, channel: Channel) -> object:
        """Run one act; answer with its result, or how it was denied.

        Raises:
            TypeError: The call names no act.
        """
        if call == HARMLESS:
            return {"value": None}
        if not isinstance(call, Mapping) or not isinstance(call["place"], Mapping):
            raise TypeError(f"no call: {call!r}")
        # The default action of a program: otherwise Python would handle the signal.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        place = Surroundings.from_json(
            call["place"], report=lambda: channel.send(FrameKind.NOTIFY, {"method": "progress"})
        )
        attempt = self._attempts[str(call["id"])]
        try:
            value = attempt.act(place)
            if attempt.during is not None:
                # The result of the act stays open, or in memory, until the host has inspected it.
                channel.send(FrameKind.REQUEST, {"id": 1})
                channel.receive()
                value = value() if callable(value) else None
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, type(error).__name__)
            return {"error": name, "guarded": isinstance(error, GuardDenied)}
        except Exception as error:  # noqa: BLE001 - an attacker takes whatever comes; it is reported
            return {"error": type(error).__name__}
        return {"value": value}


PROGRAM = Attacker(ATTEMPTS)
