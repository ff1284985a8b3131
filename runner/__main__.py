"""The way in: starts the forkserver before anything large is imported, then runs the command line.

The forkserver imports the framework, which takes longer than all else that `runner call` does. So it
begins first, and reads the command line, settings and files beside it.
"""

import os
import signal
import sys

# Before anything else is imported: until a command takes over, an interrupt ends this process at once and
# silently. The forkserver ends with this process, and nothing has begun that would have to be repaired.
signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(130))

# What lies in the folder that somebody stands in is not ours, and `python -m runner` would look there first.
if (
    not sys.flags.safe_path
    and sys.path[0] in ("", os.getcwd())
    and not __file__.startswith(f"{os.getcwd()}/")
):
    del sys.path[0]

from runner.system.importing import import_whole  # noqa: E402
from runner.system.terminal import guard_standard_streams  # noqa: E402
from runner.system.worker_environment import framework_environment  # noqa: E402
from sandbox.host.launch import Launched, launch  # noqa: E402

__all__ = ["head_start", "main"]

_COMMANDS = ("call", "dev", "serve")


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["--in"]:
        # Before anything that needs Linux, which is in the container.
        sys.exit(import_whole("runner.cli.launcher").run_in(sys.argv[2:]))
    if sys.platform != "linux":
        import_whole("runner.cli.launcher").check_system(sys.argv[1:])
    guard_standard_streams()
    launched = head_start(sys.argv[1:])
    try:
        # Imported here: that this takes a while is why the forkserver has begun.
        import_whole("runner.cli.app").main(launched)
    finally:
        if launched is not None:
            launched.discard()


def head_start(words: list[str]) -> Launched | None:
    """Start a forkserver if the words of the command line ask for tool files to be run."""
    if not words or words[0] not in _COMMANDS or "--help" in words:
        return None
    return launch(
        "runner.worker.program", environment=framework_environment(os.environ, ()), lasting=words[0] != "call"
    )


if __name__ == "__main__":
    main()
