"""Being told to stop: Ctrl-C and SIGTERM, for commands that go on until then.

Source: signal(7); `docs/cli.md`, exit codes.
"""

import asyncio
import signal
from dataclasses import dataclass, field

__all__ = ["StopSignals"]


@dataclass(slots=True, eq=False)
class StopSignals:
    """The signals that have come.

    Attributes:
        stopped: Set by the first: the command is to end in order.
        again: Set by the second: at once.
    """

    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    again: asyncio.Event = field(default_factory=asyncio.Event)
    _interrupted: bool = False

    @classmethod
    def heard(cls) -> "StopSignals":
        """Install handlers of SIGINT and SIGTERM in the running event loop; return their state."""
        signals, loop = cls(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, signals.come, number)
        return signals

    def come(self, number: int) -> None:
        """Note that a signal has come."""
        self._interrupted |= number == signal.SIGINT
        (self.again if self.stopped.is_set() else self.stopped).set()

    @property
    def exit_status(self) -> int:
        """Return the exit status of the command: after Ctrl-C, that of one that was interrupted."""
        return 128 + signal.SIGINT if self._interrupted else 0
