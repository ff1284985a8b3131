"""Servers with a Playground, shared by the tests of one process."""

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from browsers import WHOLE
from hostile_support import Seen, Sink, observe, sinking
from playground_support import TOOLS, Shown
from support import ROOT, environment_in, playground_address, stop
from web_support import Seen as Opened
from web_support import browsing


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Shown]]:
    """Start `runner serve` with a Playground, `runner dev`, or `runner proxy`."""
    with ExitStack() as stack:

        def started(
            command: str = "serve",
            tools: Path | None = None,
            config: str = "",
            port: str = "0",
            **more: str,
        ) -> Shown:
            folder = tmp_path_factory.mktemp("shown")
            file = tools or folder / "shown.py"
            if tools is None:
                file.write_text(TOOLS)
            settings = folder / "runner.toml"
            settings.write_text(config)
            user = f"t-{uuid.uuid4().hex[:12]}"
            environment = environment_in(folder, **{"RUNNER_USER": user, **more})
            transport = [] if command == "dev" else ["--transport", "http"]
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "runner.cli.app", command, str(file)),
                    *(*transport, "--port", port, "--config", str(settings)),
                ],
                env={key: value for key, value in environment.items() if value},
                cwd=ROOT,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(stop, process)
            base, key, log = playground_address(process)
            shown = Shown(base=base, first_key=key, user=user, log=log, process=process)
            assert process.stderr is not None
            # Read on, or a full pipe would hold the server up.
            threading.Thread(target=shown.lines.extend, args=(process.stderr,), daemon=True).start()
            return shown

        yield started


@pytest.fixture(scope="session")
def shown(start: Callable[..., Shown]) -> Shown:
    """A server on loopback without tokens."""
    return start()


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    with sinking() as listening:
        yield listening


@pytest.fixture(scope="module")
def hostile(start: Callable[..., Shown], sink: Sink, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    file = tmp_path_factory.mktemp("hostile") / "hostile.py"
    file.write_text(sink.tools())
    return start(tools=file)


@pytest.fixture(scope="module")
def opens_hostile(hostile: Shown) -> Iterator[Callable[..., Opened]]:
    # As people run it: what a shell lacks could be a way out.
    with browsing(hostile, WHOLE) as opened:
        yield opened


@pytest.fixture(scope="module")
def looking(opens_hostile: Callable[..., Opened], sink: Sink) -> Seen:
    """One page that looks at everything that hostile tools made, one after the other."""
    return observe(opens_hostile(), sink)
