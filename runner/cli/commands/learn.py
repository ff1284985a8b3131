"""`runner learn`: the narrowest policy under which calls of a tool file pass, as lines of runner.toml.

Source: `docs/isolation.md`, "Learn a policy".
"""

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from runner.check.dry_run import Arguments, example_arguments
from runner.check.learning import Learner, policy_text
from runner.check.report import parsed
from runner.cli.arguments import ParsedArguments, parse_arguments
from runner.cli.commands.call import put_files, read_by_schema
from runner.cli.options import LOGS, Config, File, Flags, takes
from runner.cli.start import explained, start
from runner.formats.terminal_text import one_line
from runner.settings.settings import Settings
from runner.toolset.catalog import ToolSpec
from runner.toolset.toolset import Toolset
from runner.users.identity import User
from runner.worker.targets import check_targets, entry_of

__all__ = ["learn"]


@takes("isolation", *LOGS)
def learn(
    file: File,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[TOOL [name=value | name:=json | name=@path]...]...")
    ] = None,
    *,
    config: Config = None,
    flags: Flags,
) -> int:
    """Print the narrowest policy under which calls pass; each is made several times."""
    target = check_targets([file])[0]
    calls: dict[str, list[str]] = {}
    for word in words or ():
        if "=" not in word:
            calls[word] = []
        else:
            # A word before any tool is an error, with the message of `runner call`.
            calls.setdefault(next(reversed(calls), word), []).append(word)
    settings = start({"log_level": "error", **flags}, config)
    return asyncio.run(explained(_learned(settings, target, calls), [target]))


async def _learned(settings: Settings, target: str, calls: Mapping[str, list[str]]) -> int:
    print(  # noqa: T201
        "runner: each call is made for real, several times, and gets each right that it seems to need: "
        "learn only from files whose text you have read",
        file=sys.stderr,
    )
    source = parsed(entry_of(target).file, settings.username_parameter)
    with tempfile.TemporaryDirectory(prefix="runner-learn-") as folder:
        learner = Learner(
            settings=settings,
            target=target,
            source=source,
            folder=Path(folder),
            report=lambda line: print(f"runner: {one_line(line)}", file=sys.stderr),  # noqa: T201
        )
        from_words: dict[str, Arguments] = {
            tool: partial(_from_words, parse_arguments(words, None)) if words else example_arguments
            for tool, words in calls.items()
        }
        learned = await learner.learn(from_words, example_arguments)
        print(policy_text(learned, settings, learner.at_import))  # noqa: T201
    return int(any(one.error is not None for one in learned))


async def _from_words(
    words: ParsedArguments, toolset: Toolset, user: User, spec: ToolSpec
) -> Mapping[str, Any]:
    """Return the arguments of a command line, converted as by `runner call`."""
    return read_by_schema(words, await put_files(toolset.files(user), words), spec)
