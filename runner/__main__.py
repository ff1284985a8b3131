"""Entry point: starts the forkserver before any large import, then runs the command line.

The forkserver imports the framework, which takes longer than everything else in `runner call`. So it is
started first; command line, settings and files are read in parallel.
"""

import os
import signal
import sys

# Before anything else is imported: until a command takes over, an interrupt ends this process at once and
# silently. The forkserver ends with it, and nothing has started that would need cleanup.
signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(130))

# `python -m runner` searches the working directory first, but its files are not ours.
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
        # Before any import that needs Linux, which only the container has.
        sys.exit(import_whole("runner.cli.launcher").run_in(sys.argv[2:]))
    if sys.platform != "linux":
        import_whole("runner.cli.launcher").check_system(sys.argv[1:])
    guard_standard_streams()
    launched = head_start(sys.argv[1:])
    try:
        # Imported here: it is slow, and the forkserver starts meanwhile.
        import_whole("runner.cli.app").main(launched)
    finally:
        if launched is not None:
            launched.discard()


def head_start(words: list[str]) -> Launched | None:
    """Start a forkserver if the command line runs tool files."""
    if not words or words[0] not in _COMMANDS or "--help" in words:
        return None
    return launch(
        "runner.worker.program", environment=framework_environment(os.environ, ()), lasting=words[0] != "call"
    )


if __name__ == "__main__":
    main()
