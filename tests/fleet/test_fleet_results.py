"""Return of results: as on one machine, bytes by the store alone, and each part once."""

import base64
import hashlib
import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from fleet_world import ADD, INITIALIZE, World, host_process, mcp

pytestmark = [pytest.mark.needs_s3, pytest.mark.release]

TOKEN = "token-of-ann-which-is-long-enough"
OTHERWISE_BYTES = 100_000
# Each a tool, its arguments, and how many bytes Redis may be sent for it.
CASES: list[tuple[str, dict[str, Any], int]] = [
    ("picture", {"kib": 20}, OTHERWISE_BYTES),
    ("picture", {"kib": 2000}, OTHERWISE_BYTES),
    ("content", {"kib": 2000}, OTHERWISE_BYTES),
    ("words", {"text": "a few words"}, OTHERWISE_BYTES),
    ("rows", {"count": 5}, OTHERWISE_BYTES),
    # Once, and not as often as a client gets it: as a text and as structured content.
    ("text", {"kib": 300}, 300 * 1024 + OTHERWISE_BYTES),
    ("rows", {"count": 6000}, 6000 * 45 + OTHERWISE_BYTES),
]


def _result(answer: str) -> dict[str, Any]:
    """Return the result in an answer, which is a message or a stream of them."""
    lines = [line.removeprefix("data: ") for line in answer.splitlines()]
    messages = [json.loads(line) for line in lines if line.startswith("{")]
    (result,) = (message["result"] for message in messages if "result" in message)
    return dict(result)


def _carried(world: World) -> int:
    """Return how many bytes Redis has been sent."""
    return int(world.redis.client().info("stats")["total_net_input_bytes"])


def test_results_are_as_on_one_machine_and_bytes_go_by_the_store(world: World) -> None:
    world.node("one")
    local = {"redis_url": "", "store": (world.folder / "store").as_uri()}

    with (
        host_process(world, "host", {TOKEN: "ann"}) as host,
        host_process(world, "alone", {TOKEN: "ann"}, **local) as other,
    ):
        sessions = [mcp(one.base, INITIALIZE, None, TOKEN).headers["mcp-session-id"] for one in (host, other)]
        mcp(host.base, ADD, sessions[0], TOKEN)
        results, carried = [], []
        for tool, arguments, _ in CASES:
            message = {**ADD, "params": {"name": tool, "arguments": arguments}}
            before = _carried(world)
            of_fleet = _result(mcp(host.base, message, sessions[0], TOKEN).text)
            carried.append(_carried(world) - before)
            results.append((of_fleet, _result(mcp(other.base, message, sessions[1], TOKEN).text)))

    assert not [one for one, _ in results if one["isError"]]
    for of_fleet, alone in results:
        assert _without_names(of_fleet) == _without_names(alone)
    assert [size for size, (*_, most) in zip(carried, CASES, strict=True) if size > most] == []


def test_not_even_a_short_file_passes_through_redis(world: World) -> None:
    world.node("one")
    words = f"only the store has these words, {secrets.token_hex(8)}"
    encoded = base64.b64encode(words.encode()).decode()
    message = {**ADD, "params": {"name": "words", "arguments": {"text": words}}}

    with host_process(world, "host", {TOKEN: "ann"}) as host:
        session = mcp(host.base, INITIALIZE, None, TOKEN).headers["mcp-session-id"]
        # The monitor of redis-py has no types.
        client: Any = world.redis.client()
        with client.monitor() as monitor:
            result = _result(mcp(host.base, message, session, TOKEN).text)
            world.redis.client().echo("the call has ended")
            commands = "".join(_commands_until(monitor, "the call has ended"))

    assert not result["isError"]
    assert "words.txt" in json.dumps(result)
    # Control: the arguments of the call do pass through Redis.
    assert words in commands
    assert encoded not in commands


def _commands_until(monitor: Any, last: str) -> Iterator[str]:
    """Yield the commands that Redis receives, up to the one with `last` in it."""
    for event in monitor.listen():
        yield str(event["command"])
        if last in event["command"]:
            return


def _without_names(value: Any) -> Any:
    """Return a result without what differs from call to call: ids, addresses, names, its worker's past."""
    if isinstance(value, dict):
        apart = ("uri", "name", "toolcell/download", "title", "worker")
        return {key: _without_names(item) for key, item in value.items() if key not in apart}
    if isinstance(value, list):
        return [_without_names(item) for item in value]
    # Long ones are as good by their digest, and a difference can be read.
    is_long = isinstance(value, str) and len(value) > 500
    return hashlib.sha256(value.encode()).hexdigest() if is_long else value
