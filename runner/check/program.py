"""The program that `runner check` lets a zygote load: the usual one, watched while it imports the file."""

import socket
from collections.abc import Callable, Mapping

from runner.check.import_watch import ImportWatch
from runner.settings.targets import tool_files
from runner.worker.program import ToolProgram
from sandbox.inside.program import Channel, JoinedCall

__all__ = ["PROGRAM", "WatchedProgram"]


class WatchedProgram:
    """A tool file behind its own server, whose import is watched."""

    def __init__(self, program: ToolProgram) -> None:
        self._program = program

    def begin(self) -> None:
        """Begin as the usual program does."""
        self._program.begin()

    def load(self, config: Mapping[str, object]) -> object:
        """Import the files, and return the catalog with what was seen meanwhile."""
        files = config["files"]
        targets = files if isinstance(files, list) else []
        with ImportWatch([str(file) for file in tool_files(map(str, targets))]) as watch:
            catalog = self._program.load(config)
        return {**catalog, "watched": watch.report()} if isinstance(catalog, dict) else catalog

    def warm_up(self) -> None:
        """Leave it out: no call follows."""

    def prepare(self, *, warm: bool) -> None:
        """Make ready in a worker, as the usual program does."""
        self._program.prepare(warm=warm)

    def serve(self, call: object, channel: Channel) -> object:
        """Serve one request, as the usual program does."""
        return self._program.serve(call, channel)

    def serve_many(
        self, first: JoinedCall | None, connection: socket.socket, joined: Callable[[], JoinedCall | None]
    ) -> None:
        """Serve requests at once, as the usual program does."""
        self._program.serve_many(first, connection, joined)

    def finish(self) -> None:
        """Finish as the usual program does."""
        self._program.finish()

    def wait(self, connection: socket.socket) -> None:
        """Wait between two calls, as the usual program does."""
        self._program.wait(connection)


PROGRAM = WatchedProgram(ToolProgram())
