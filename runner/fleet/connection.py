"""The ways of one process to the Redis of its fleet: commands, long reads, and dockets."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from docket import Docket
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry as BlockingRetry

from runner.errors import UsageError
from runner.fleet.address import RedisAddress
from runner.fleet.internals.plain_pickles import read_plain_pickles_only
from runner.fleet.redis_names import RedisKeys
from runner.fleet.seal import FleetKey
from runner.settings.parts import FleetSettings

__all__ = ["REDIS_FAILURES", "TASK", "FleetConnection", "leave_if_cancelled", "problem_of"]

log = logging.getLogger(__name__)

TASK = "toolcell_call"
"""What a call is called in a docket."""

REDIS_FAILURES = (RedisError, OSError, TimeoutError)
"""What is raised where Redis does not answer, or not with what was asked for."""

_COMMAND_S = 2.0
_READ_MS = 1000
_READ_S = 5.0
_AGAIN_S = 0.3
_MOST_AT_ONCE = 200
# Fleets that share a Redis have a database each.
_FLEET = "toolcell"


def problem_of(error: Exception) -> str:
    """Return what went wrong, for a sentence."""
    return str(error) or type(error).__name__


def leave_if_cancelled() -> None:
    """End the running task where it was told to: below redis-py, a cancellation may come out as its timeout.

    Raises:
        CancelledError: It was.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _elsewhere(record: str) -> None:
    """Stand for a call where one is only sent."""


@dataclass(slots=True, kw_only=True, eq=False)
class FleetConnection:
    """A connection to the Redis of a fleet.

    Attributes:
        address: Where it is.
        keys: What is called how there.
        key: Seals and opens what is said there.
        redis: For commands, each of which is answered soon or fails.
        reading: For reads that wait.
    """

    address: RedisAddress
    keys: RedisKeys
    key: FleetKey
    redis: Redis
    reading: Redis
    _dockets: dict[str, Docket] = field(default_factory=dict)
    _closing: AsyncExitStack = field(default_factory=AsyncExitStack)
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: FleetSettings) -> AsyncIterator[Self]:
        """Connect as the settings say.

        Raises:
            UsageError: They say it wrongly, or Redis cannot be used.
        """
        if settings.redis_url is None:
            raise UsageError("the engine docket needs redis_url; give --redis-url or RUNNER_REDIS_URL")
        if settings.fleet_key_file is None:
            raise UsageError("the engine docket needs fleet_key_file, the same key on all its machines")
        address = RedisAddress.checked(
            settings.redis_url.get_secret_value(), insecure=settings.redis_insecure
        )
        read_plain_pickles_only()
        # A line for each call, and more of them than calls.
        logging.getLogger("docket").setLevel(logging.WARNING)
        connection = cls(
            address=address,
            keys=RedisKeys(_FLEET),
            key=FleetKey.read(settings.fleet_key_file),
            redis=_client(address, _COMMAND_S),
            reading=_client(address, _READ_S),
        )
        async with connection._closing:
            connection._closing.push_async_callback(connection.reading.aclose)
            connection._closing.push_async_callback(connection.redis.aclose)
            await connection._check()
            yield connection

    def blocking(self) -> BlockingRedis:
        """Return a client for threads; it is closed with this connection."""
        client = BlockingRedis.from_url(
            self.address.url, socket_timeout=_COMMAND_S, socket_connect_timeout=_COMMAND_S,
            retry=BlockingRetry(NoBackoff(), 0),
        )  # fmt: skip
        self._closing.callback(client.close)
        return client

    async def docket(self, node: str) -> Docket:
        """Return the docket from which a node takes calls."""
        async with self._making:
            known = self._dockets.get(node)
            if known is None:
                known = Docket(
                    name=self.keys.queue(node),
                    url=self.address.url,
                    # What has been delivered is not kept: the arguments of users are in it.
                    execution_ttl=timedelta(0),
                )
                # Those that come with it are for demonstrations.
                known.tasks.clear()
                known.register(_elsewhere, names=[TASK])
                await self._closing.enter_async_context(known)
                self._dockets[node] = known
            return known

    async def hear(self, stream: str, receive: Callable[[bytes], Awaitable[None] | None]) -> None:
        """Read a stream for ever, each entry once it was heard gone from there; go on after an outage.

        Args:
            stream: The stream.
            receive: Takes what an entry says; does not raise.
        """
        done: list[bytes] = []
        while True:
            leave_if_cancelled()
            try:
                # From its beginning: what was heard is gone, and the clock of Redis may have been put back.
                async with self.reading.pipeline(transaction=False) as both:
                    if done:
                        both.xdel(stream, *done)
                    both.xread({stream: "0-0"}, count=_MOST_AT_ONCE, block=_READ_MS)
                    replies = await both.execute()
            except REDIS_FAILURES as error:
                log.warning("redis is out of reach", extra={"fault": str(error)})
                await asyncio.sleep(_AGAIN_S)
                continue
            done = []
            for entry, fields in _entries(replies[-1]):
                done.append(entry)
                taken = receive(fields.get(b"said", b""))
                if taken is not None:
                    await taken

    async def _check(self) -> None:
        """Refuse a Redis that cannot be used, and one that may forget calls to make room."""
        try:
            await self.redis.ping()
        except REDIS_FAILURES as error:
            raise UsageError(f"redis_url: Redis at {self.address.shown} does not answer: {error}") from error
        with contextlib.suppress(ResponseError):
            # Services that are run for others do not tell.
            reply = await self.redis.config_get("maxmemory-policy")
            policy = reply.get("maxmemory-policy")
            if policy not in (None, "noeviction"):
                raise UsageError(
                    f"Redis at {self.address.shown} may forget calls when its memory is full "
                    f"(maxmemory-policy {policy}); set it to noeviction"
                )


def _client(address: RedisAddress, timeout_s: float) -> Redis:
    # The caller knows whether to retry.
    return Redis.from_url(
        address.url,
        socket_timeout=timeout_s,
        socket_connect_timeout=_COMMAND_S,
        retry=Retry(NoBackoff(), 0),
    )


def _entries(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Return the entries of one stream, as either version of the protocol has them."""
    if not reply:
        return []
    (stream,) = reply.values() if isinstance(reply, dict) else [entries for _, entries in reply]
    found = stream[0] if isinstance(reply, dict) and stream and isinstance(stream[0], list) else stream
    return [(entry, fields) for entry, fields in found]
