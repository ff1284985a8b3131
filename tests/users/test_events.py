from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import pytest

from runner.users.events import Events, Subscription

pytestmark = pytest.mark.anyio


def event(number: int, **more: object) -> dict[str, Any]:
    return {"type": "tool_progress", "number": number, **more}


async def numbers_of(subscription: Subscription) -> list[int]:
    subscription.close()
    return [each["number"] async for each in subscription]


async def test_listener_receives_its_users_events_in_order() -> None:
    events = Events()

    with events.subscribe(user="ann") as listening:
        for number in range(3):
            events.publish(event(number), user="ann", session=f"s{number}")

        assert await numbers_of(listening) == [0, 1, 2]


async def test_events_of_other_user_or_session_not_received() -> None:
    events = Events()

    with events.subscribe(user="ann", session="one") as mine, events.subscribe(user="ann") as all_mine:
        events.publish(event(1), user="ann", session="one")
        events.publish(event(2), user="ann", session="two")
        events.publish(event(3), user="bob", session="one")
        events.publish(event(4), user="ann")

        assert await numbers_of(mine) == [1, 4]
        assert await numbers_of(all_mine) == [1, 2, 4]


async def test_slow_listener_loses_oldest_and_receives_count() -> None:
    events = Events()

    with events.subscribe(user="ann", max_events=2) as listening:
        for number in range(5):
            events.publish(event(number), user="ann")

        assert listening.missed == 3
        assert await numbers_of(listening) == [3, 4]


async def test_large_events_held_up_to_byte_limit() -> None:
    events = Events()

    with events.subscribe(user="ann") as listening:
        for number in range(40):
            events.publish(event(number, content="x" * 1_000_000), user="ann")

        numbers = await numbers_of(listening)

    assert numbers == list(range(40 - len(numbers), 40))
    assert 10 <= len(numbers) <= 17


async def test_waiting_listener_wakes_for_event_and_end() -> None:
    events, got = Events(), []

    async def listen(subscription: AsyncIterator[Mapping[str, Any]]) -> None:
        got.extend([each["number"] async for each in subscription])

    async with anyio.create_task_group() as group:
        with events.subscribe(user="ann") as listening:
            group.start_soon(listen, listening)
            await anyio.lowlevel.checkpoint()
            events.publish(event(7), user="ann")

    assert got == [7]


async def test_events_without_listener_are_gone() -> None:
    events = Events()
    with events.subscribe(user="ann"):
        assert events.has_listener(user="ann", session="any")
    events.publish(event(1), user="ann")

    with events.subscribe(user="ann", session="one") as listening:
        assert not events.has_listener(user="bob")
        assert await numbers_of(listening) == []
