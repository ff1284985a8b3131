"""Connection of one process to the Redis of its fleet: commands, and streams of sealed messages."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ValidationError
from redis import Redis as BlockingRedis
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry as BlockingRetry

from runner.errors import UsageError
from runner.fleet.address import checked_address, shown_address
from runner.fleet.seal import LONG_BYTES, FleetKey, Forged
from runner.formats.json_walks import least_chars
from runner.settings.execution import ExecutionSettings

__all__ = [
    "FENCE_S", "HOST_TTL_S", "HOUR_MS", "NODE_TTL_S", "REDIS_FAILURES", "FleetConnection",
    "leave_if_cancelled", "problem_of", "redis_key",
]  # fmt: skip

log = logging.getLogger(__name__)

T = TypeVar("T")

REDIS_FAILURES = (RedisError, OSError)
"""Exceptions of a Redis that does not answer, or answers with an error."""

NODE_TTL_S = 7.0
"""Lifetime of a node's status in Redis, in seconds; hosts take the node for dead when it has expired."""

HOST_TTL_S = 5.0
"""Lifetime of a host's name in Redis, in seconds; nodes end its calls some beats after it has expired."""

FENCE_S = 5.0
"""Seconds without an answer of Redis after which a node ends its calls: before its status has expired."""

HOUR_MS = 3_600_000
"""Lifetime of what nobody would remove after the end of its process, in milliseconds."""

_COMMAND_S = 2.0
_CONNECTIONS = 32
_THREADS = 2
_READ_MS = 1000
_READ_S = 5.0
_AGAIN_S = 0.3
_MOST_AT_ONCE = 200
# An end has an answer three times: the tool's own result, the contract value, and its texts.
_ANSWERS = 4
# The status of a node has all of its calls.
_LEAST_RECORD_BYTES = 1 << 20


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
    "node", "nodes", "host", "begin", "stream", "user", "state",
    "sessions", "session-uses", "session-end", "events",
]  # fmt: skip


def redis_key(kind: _Kind, *whose: str) -> str:
    """Return the name of a key in Redis. Fleets that share a Redis have a database each.

    `node` is the status of a node, `nodes` the set of nodes of a release that accept calls. A host has `host`
    while it is alive. `stream` holds the messages to a host or node. A call may begin as long as its `begin`
    exists. `user` holds the node of a user, `state` the session state.
    """
    return ":".join(("toolcell", kind, *whose))


@dataclass(slots=True, kw_only=True, eq=False)
class FleetConnection:
    """A connection to the Redis of a fleet.

    Attributes:
        url: Its address, with its password; for clients alone.
        key: Seals and opens messages.
        redis: For commands, each of which is answered soon or fails.
        reading: For reads that wait.
    """

    url: str = field(repr=False)
    key: FleetKey
    redis: Redis
    reading: Redis
    # Those of the loop may all wait for S3. A status waits for no result either.
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_THREADS, "fleet"))
    _urgent: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "fleet-status"))
    _closing: AsyncExitStack = field(default_factory=AsyncExitStack)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: ExecutionSettings) -> AsyncIterator[Self]:
        """Connect according to the settings.

        Raises:
            UsageError: A setting is wrong, or Redis cannot be used.
        """
        if settings.redis_url is None or settings.fleet_key_file is None:
            raise UsageError("a fleet needs redis_url and fleet_key_file")
        url = checked_address(settings.redis_url.get_secret_value(), insecure=settings.redis_insecure)
        most = max(_LEAST_RECORD_BYTES, _ANSWERS * settings.max_payload_bytes)
        connection = cls(
            url=url,
            key=FleetKey.read(settings.fleet_key_file, record_max_bytes=most),
            redis=_client(url, _COMMAND_S),
            reading=_client(url, _READ_S),
        )
        async with connection._closing:
            connection._closing.callback(connection._threads.shutdown)
            connection._closing.callback(connection._urgent.shutdown)
            connection._closing.push_async_callback(connection.reading.aclose)
            connection._closing.push_async_callback(connection.redis.aclose)
            await connection._check()
            yield connection

    @property
    def shown(self) -> str:
        """Return the address without its password."""
        return shown_address(self.url)

    def blocking(self) -> BlockingRedis:
        """Return a client for threads; it is closed with this connection."""
        client = BlockingRedis.from_url(
            self.url, socket_timeout=_COMMAND_S, socket_connect_timeout=_COMMAND_S,
            retry=BlockingRetry(NoBackoff(), 0),
        )  # fmt: skip
        self._closing.callback(client.close)
        return client

    async def sealed(self, message: BaseModel, *, to: str, is_urgent: bool = False) -> bytes:
        """Return a message as JSON, sealed for one receiver; a long one is sealed in a thread.

        Args:
            message: The message.
            to: Its receiver.
            is_urgent: Whether it must not wait for results, as a status.
        """
        if least_chars(vars(message), LONG_BYTES) <= LONG_BYTES:
            return self.key.seal(message.model_dump(), to=to)
        return await self._in_thread(lambda: self.key.seal(message.model_dump(), to=to), is_urgent=is_urgent)

    async def opened(
        self, validate: Callable[[Any], T], sealed: bytes, *, to: str, is_urgent: bool = False
    ) -> T | None:
        """Return a sealed message, or None for one to be dropped; a long one is opened in a thread.

        Args:
            validate: Returns the message of a JSON object, or raises `ValidationError`.
            sealed: The message, sealed.
            to: Its receiver.
            is_urgent: As of `sealed`.
        """

        def message() -> T:
            return validate(self.key.opened(sealed, to=to))

        try:
            # A short one that is compressed may be long, too.
            is_long = self.key.is_compressed(sealed)
            return await self._in_thread(message, is_urgent=is_urgent) if is_long else message()
        except (Forged, ValidationError) as error:
            log.warning("fleet message dropped", extra={"reason": str(error)})
            return None

    async def _in_thread(self, act: Callable[[], T], *, is_urgent: bool) -> T:
        threads = self._urgent if is_urgent else self._threads
        return await asyncio.get_running_loop().run_in_executor(threads, act)

    async def send(self, to: str, message: BaseModel) -> None:
        """Append a message to the stream of a host or node.

        Raises:
            REDIS_FAILURES: It was not appended, or Redis did not answer.
        """
        stream, sealed = redis_key("stream", to), await self.sealed(message, to=to)
        async with self.redis.pipeline(transaction=False) as both:
            both.xadd(stream, {"sealed": sealed})
            # Of a receiver that is gone nothing stays.
            both.pexpire(stream, HOUR_MS)
            # redis-py would put the message into the error that it raises itself.
            added, _ = await both.execute(raise_on_error=False)
        if isinstance(added, Exception):
            raise added

    async def consume(
        self, name: str, validate: Callable[[Any], T], receive: Callable[[T], Awaitable[None]]
    ) -> None:
        """Read the stream of this process for ever, deleting each entry after it was received.

        Args:
            name: Name of this process in the fleet.
            validate: As of `opened`.
            receive: Receives a message; does not raise.
        """
        stream, done = redis_key("stream", name), list[bytes]()
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
                log.warning("redis not reachable", extra={"fault": problem_of(error)})
                await asyncio.sleep(_AGAIN_S)
                continue
            done = []
            for entry, fields in _entries(replies[-1]):
                done.append(entry)
                message = await self.opened(validate, fields.get(b"sealed", b""), to=name)
                if message is not None:
                    await receive(message)
                # Others wait for the loop.
                await asyncio.sleep(0)

    async def _check(self) -> None:
        """Refuse a Redis that cannot be used, and one that may forget calls to make room."""
        try:
            await self.redis.ping()
        except REDIS_FAILURES as error:
            raise UsageError(f"redis_url: Redis at {self.shown} does not answer: {error}") from error
        with contextlib.suppress(ResponseError):
            # Managed services refuse CONFIG GET.
            reply = await self.redis.config_get("maxmemory-policy")
            policy = reply.get("maxmemory-policy")
            if policy not in (None, "noeviction"):
                raise UsageError(
                    f"Redis at {self.shown} may forget calls when its memory is full "
                    f"(maxmemory-policy {policy}); set it to noeviction"
                )


def _client(url: str, timeout_s: float) -> Redis:
    # A command waits for a connection, and its caller knows whether to retry it.
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=_CONNECTIONS,
        timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=_COMMAND_S,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)


def _entries(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Return the entries of one stream, as either version of the protocol has them."""
    if not reply:
        return []
    if not isinstance(reply, dict):
        return list(reply[0][1])
    (stream,) = reply.values()
    return list(stream[0] if stream and isinstance(stream[0], list) else stream)
