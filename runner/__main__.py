"""The way in: starts the forkserver before anything large is imported, then runs the command line.

The forkserver imports the framework, which takes longer than all else that `runner call` does. So it
begins first, and reads the command line, settings and files beside it.
"""

import os
import sys

from runner.environment import framework_environment
from runner.importing import import_whole
from sandbox.launch import Launched, launch

__all__ = ["head_start", "main"]

_COMMANDS = ("call", "dev", "serve")


def main() -> None:
    """Run the command line."""
    launched = head_start(sys.argv[1:])
    try:
        # Imported here: that this takes a while is why the forkserver has begun.
        import_whole("runner.cli").main(launched)
    finally:
        if launched is not None:
            launched.discard()


def head_start(words: list[str]) -> Launched | None:
    """Start a forkserver if the words of the command line ask for tool files to be run."""
    if not words or words[0] not in _COMMANDS or "--help" in words:
        return None
    return launch(
        "runner.program", environment=framework_environment(os.environ, ()), lasting=words[0] != "call"
    )


if __name__ == "__main__":
    main()
