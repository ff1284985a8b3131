"""Calls: operations of chapter 4 of the conformance README, by the project's own functions."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance_results import accept
from conformance_world import World, described

from runner.artifacts.accept import failed
from runner.contract.available_files import AvailableFile, files_block
from runner.contract.normalise import normalise
from runner.errors import CallError
from runner.settings.settings import Settings
from runner.steps.listener import MESSAGE, PROGRESS, CallListener
from runner.steps.verdict import judge
from runner.toolset.session_state import SessionState
from sandbox.deadlines import Ladder, Rung
from sandbox.outcome import Ending, Outcome
from sandbox.policy import Limits

__all__ = ["OPERATIONS"]

Observation = dict[str, Any]

_USER = "alice"
# The cases know no total limit; a day is as good as none.
_NO_TOTAL_S = 86_400.0
_TIMEOUTS = {Rung.IDLE_END: Ending.IDLE_TIMEOUT, Rung.TOTAL_END: Ending.TOTAL_TIMEOUT}


def _augment_prompt(case: Mapping[str, Any]) -> Observation:
    files = [
        AvailableFile(
            name=file["name"],
            source=file["source"],
            day=file.get("date"),
            size=file.get("size"),
            reason=file.get("reason"),
            facts={key: file[key] for key in ("rows", "width", "height") if key in file},
        )
        for file in case["files"]
    ]
    # A host puts the block behind a prompt as it is; without files there is none.
    block = files_block(files)
    return {"output": f"{case['prompt']}\n\n{block}" if block else case["prompt"]}


@dataclass
class _Heard:
    """A client that writes down what it is told, and when. A `runner.steps.listener.Client`."""

    now: float = 0.0
    notices: list[list[Any]] = field(default_factory=list)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        if method == MESSAGE:
            self.notices.append([self.now, params["data"]["msg"]])

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        raise NotImplementedError(method)


def _listener(client: _Heard, settings: Settings, events: list[Mapping[str, Any]]) -> CallListener:
    return CallListener(
        client=client,
        params={},
        levels=frozenset({"warning"}),
        deadlines=settings.deadlines(),
        user=_USER,
        state=SessionState(),
        publish=events.append,
    )


def _notification(kind: str, payload: Any) -> dict[str, Any]:
    """Return what FastMCP sends for `ctx.report_progress` and `ctx.info`."""
    if kind == "progress":
        named = zip(("progress", "total", "message"), payload, strict=False)
        return {"method": PROGRESS, "params": dict(named)}
    return {"method": MESSAGE, "params": {"level": "info", "data": {"msg": payload, "extra": None}}}


async def _run(case: Mapping[str, Any], client: _Heard, listener: CallListener) -> Outcome:
    """Let the ladder and the tool's events happen in the order of their seconds."""
    ladder = Ladder(listener.deadlines, now=0.0)
    for second, kind, payload in [*case["tool_events"], [math.inf, "silence", None]]:
        while ladder.wakes_at() <= second:
            client.now = ladder.wakes_at()
            for rung in ladder.climb(client.now):
                if rung in _TIMEOUTS:
                    await listener.rung(Rung.IDLE_END)
                    return Outcome(ending=_TIMEOUTS[rung], elapsed_s=client.now)
                await listener.rung(rung)
        client.now = second
        if kind == "return":
            wire = {"structuredContent": payload, "content": [], "isError": False}
            return Outcome(ending=Ending.ANSWERED, answer={"result": wire}, elapsed_s=second)
        # A partial result stays in the worker and its home: there is no frame that would carry it.
        if kind in ("progress", "info"):
            ladder.progress(second)
            await listener.notify(_notification(kind, payload))
    raise AssertionError("a ladder that never ends")


def _run_with_clock(case: Mapping[str, Any]) -> Observation:
    idle_s = case.get("config", {}).get("timeout_seconds", 30)
    settings = Settings(idle_timeout_s=idle_s, total_timeout_s=_NO_TOTAL_S)
    client = _Heard()
    listener = _listener(client, settings, [])
    outcome = asyncio.run(_run(case, client, listener))
    timed_out = outcome.ending is not Ending.ANSWERED
    with World.of(_USER) as world:
        try:
            wire = judge(outcome, listener, home=world.home.path, limits=Limits())
            processed = accept(world, normalise(wire, wrapped=False))
        except CallError as error:
            processed = failed(error)
    return {
        "output": processed.value,
        "notifications": client.notices,
        "timeout_at": outcome.elapsed_s if timed_out else None,
        "killed": timed_out,
        "artifacts": [described(file) for file in processed.files],
    }


def _progress(case: Mapping[str, Any]) -> Observation:
    events: list[Mapping[str, Any]] = []
    listener = _listener(_Heard(), Settings(), events)
    report = _notification("progress", [case.get(key) for key in ("progress", "total", "message")])
    asyncio.run(listener.notify(report))
    return {"events": [dict(event) for event in events]}


OPERATIONS = {
    "augment_prompt": _augment_prompt,
    "run_with_clock": _run_with_clock,
    "progress": _progress,
}
