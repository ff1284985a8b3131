"""Automatic reload of the configuration: a failure ends that reload, and not later ones."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from support import becomes, settings_in

from runner.errors import UsageError
from runner.server.reloading import Reloads, Take
from runner.settings.settings import Settings
from runner.system.running_servers import RunningServer, running_in

pytestmark = pytest.mark.anyio


def have_been(folder: Path, reloads: int) -> bool:
    return running_in(folder)[0].reloads == reloads


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), UsageError("a token is wrong")])
async def test_failed_reload_reported_and_next_one_works(tmp_path: Path, fault: Exception) -> None:
    settings, faults = settings_in(tmp_path), [fault]

    def prepare(_: Settings) -> Take:
        def take() -> Sequence[str]:
            if faults:
                raise faults.pop()
            return ["something else"]

        return take

    reloads = Reloads(settings=settings, reread=lambda: settings, prepare=[prepare])
    with RunningServer.open(tmp_path, what="it") as server:
        task = asyncio.create_task(reloads.run(server))
        outcomes = []
        for number in (1, 2):
            reloads.requested.set()
            assert await becomes(partial(have_been, tmp_path, number))
            outcomes.append(running_in(tmp_path)[0].outcome)
        task.cancel()

    assert str(fault) in outcomes[0]["error"]
    assert outcomes[1]["error"] is None
    assert outcomes[1]["changed"] == ["something else"]
