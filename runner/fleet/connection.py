"""The ways of one process to the Redis of its fleet: commands, and long reads."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry as BlockingRetry

from runner.errors import UsageError
from runner.fleet.address import RedisAddress
from runner.fleet.seal import FleetKey
from runner.settings.parts import FleetSettings

__all__ = [
    "FENCE_S", "HOST_TTL_S", "NODE_TTL_S", "REDIS_FAILURES", "FleetConnection", "RedisKeys",
    "leave_if_cancelled", "problem_of",
]  # fmt: skip

log = logging.getLogger(__name__)

REDIS_FAILURES = (RedisError, OSError, TimeoutError)
"""Exceptions of a Redis that does not answer, or answers with an error."""

NODE_TTL_S = 7.0
"""Lifetime of a node's status in Redis, in seconds; hosts take the node for dead when it has expired."""

HOST_TTL_S = 5.0
"""Lifetime of a host's name in Redis, in seconds; nodes end its calls some beats after it has expired."""

FENCE_S = 5.0
"""Seconds without an answer of Redis after which a node ends its calls: before its status has expired."""

_COMMAND_S = 2.0
_READ_MS = 1000
_READ_S = 5.0
_AGAIN_S = 0.3
_MOST_AT_ONCE = 200
# Fleets that share a Redis have a database each.
_FLEET = "toolcell"


def problem_of(error: Exception) -> str:
    """Return the cause of a failure, for a sentence."""
    return str(error) or type(error).__name__


def leave_if_cancelled() -> None:
    """Raise if the running task was cancelled: redis-py may turn a cancellation into its own timeout.

    Raises:
        CancelledError: The task was cancelled.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


_Kind = Literal[
    "node", "nodes", "host", "begin", "said", "told", "user", "state",
    "sessions", "session-uses", "session-end", "events",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class RedisKeys:
    """Names of keys in Redis. They begin with the name of the fleet, so fleets can share one Redis.

    `node` is the status of a node, `nodes` the set of nodes of a release that accept calls. A host has `host`
    while it is alive. A call may begin as long as its `begin` exists. `said` is the stream of messages to a
    host, `told` the one to a node. `user` holds the node of a user, `state` the session state.
    """

    fleet: str

    def __call__(self, kind: _Kind, *whose: str) -> str:
        """Return a key."""
        return ":".join((self.fleet, kind, *whose))


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
    _closing: AsyncExitStack = field(default_factory=AsyncExitStack)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: FleetSettings) -> AsyncIterator[Self]:
        """Connect according to the settings.

        Raises:
            UsageError: A setting is wrong, or Redis cannot be used.
        """
        if settings.redis_url is None or settings.fleet_key_file is None:
            raise UsageError("a fleet needs redis_url and fleet_key_file")
        address = RedisAddress.checked(
            settings.redis_url.get_secret_value(), insecure=settings.redis_insecure
        )
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

    async def consume(self, stream: str, receive: Callable[[bytes], Awaitable[None] | None]) -> None:
        """Read a stream for ever, deleting each entry after it was received; resume after an outage.

        Args:
            stream: The stream.
            receive: Receives the text of an entry; does not raise.
        """
        done: list[bytes] = []
        while True:
            leave_if_cancelled()
            try:
                # From the beginning: received entries are deleted, and the clock of Redis may be set back.
                async with self.reading.pipeline(transaction=False) as both:
                    if done:
                        both.xdel(stream, *done)
                    both.xread({stream: "0-0"}, count=_MOST_AT_ONCE, block=_READ_MS)
                    replies = await both.execute()
            except REDIS_FAILURES as error:
                log.warning("redis not reachable", extra={"fault": str(error)})
                await asyncio.sleep(_AGAIN_S)
                continue
            done = []
            for entry, fields in _entries(replies[-1]):
                done.append(entry)
                taken = receive(fields.get(b"said", b""))
                if taken is not None:
                    await taken
                # Opening a long message takes a while, and others wait for the loop.
                await asyncio.sleep(0)

    async def _check(self) -> None:
        """Refuse a Redis that cannot be used, and one that may forget calls to make room."""
        try:
            await self.redis.ping()
        except REDIS_FAILURES as error:
            raise UsageError(f"redis_url: Redis at {self.address.shown} does not answer: {error}") from error
        with contextlib.suppress(ResponseError):
            # Managed services refuse CONFIG GET.
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
    if not isinstance(reply, dict):
        return list(reply[0][1])
    (stream,) = reply.values()
    return list(stream[0] if stream and isinstance(stream[0], list) else stream)
