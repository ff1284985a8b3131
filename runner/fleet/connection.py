"""Connection of one process to the Redis of its fleet: commands, and streams of sealed messages."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError
from redis import Redis as BlockingRedis
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.retry import Retry as BlockingRetry

from runner.errors import UsageError
from runner.fleet.seal import LONG_BYTES, FleetKey, Forged
from runner.formats.json_walks import least_chars
from runner.settings.execution import ExecutionSettings
from runner.users.resource import is_loopback

__all__ = [
    "FENCE_S", "HOST_TTL_S", "HOUR_MS", "NODE_TTL_S", "REDIS_FAILURES", "FleetConnection",
    "checked_address", "leave_if_cancelled", "problem_of", "redis_key", "repeat",
]  # fmt: skip

log = logging.getLogger(__name__)

T = TypeVar("T")

REDIS_FAILURES = (RedisError, OSError)
"""Exceptions raised when Redis does not answer, or answers with an error."""

NODE_TTL_S = 7.0
"""TTL of a node's status in Redis, in seconds; hosts consider the node dead once it has expired."""

HOST_TTL_S = 5.0
"""TTL of a host's heartbeat key in Redis, in seconds; nodes cancel its calls some beats after it expires."""

FENCE_S = 5.0
"""Seconds without an answer from Redis after which a node cancels its calls, before its status expires."""

HOUR_MS = 3_600_000
"""TTL, in milliseconds, of keys that would otherwise outlive their process."""

_PORT = 6379
_FORMS = "write redis://HOST:PORT/0, rediss://:PASSWORD@HOST:PORT/0 or unix:///path"
_COMMAND_S = 2.0
_CONNECTIONS = 32
_READ_MS = 1000
_READ_S = 5.0
_AGAIN_S = 0.3
_MOST_AT_ONCE = 200
# An `end` message repeats the answer three times: as the tool's own result, contract value and texts.
_ANSWERS = 4
# A node's status lists all of its calls.
_LEAST_RECORD_BYTES = 1 << 20


def problem_of(error: Exception) -> str:
    """Return the text of an error, or its class name if it has no text."""
    return str(error) or type(error).__name__


def leave_if_cancelled() -> None:
    """Raise if the running task was cancelled: redis-py may turn a cancellation into its own timeout.

    Raises:
        CancelledError: The task was cancelled.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def repeat(step: Callable[[], Awaitable[None]], *, pause_s: float = 0) -> None:
    """Run a step forever, with a pause after each run; retry after a failure of Redis."""
    while True:
        leave_if_cancelled()
        try:
            await step()
        except REDIS_FAILURES as error:
            log.warning("redis not reachable", extra={"fault": problem_of(error)})
            await asyncio.sleep(_AGAIN_S)
        else:
            await asyncio.sleep(pause_s)


_Kind = Literal[
    "node", "nodes", "host", "begin", "stream", "user", "state", "sessions", "holders", "events",
]  # fmt: skip


def redis_key(kind: _Kind, *whose: str) -> str:
    """Return the name of a Redis key. Fleets that share a Redis server use a database each.

    `node` is the status of a node, `nodes` the set of nodes of a release that accept calls. `host` is the
    heartbeat of a host. `stream` holds the messages to a host or node. A call may start while its `begin`
    key exists and names the current history of Redis. `user` holds the name of a user's node, `state` the
    session state.
    """
    return ":".join(("toolcell", kind, *whose))


@dataclass(slots=True, kw_only=True, eq=False)
class FleetConnection:
    """A connection to the Redis of a fleet.

    Attributes:
        url: Address with its password; only for Redis clients.
        key: Seals and opens messages.
        redis: Client for commands, with a short timeout.
        reading: Client for blocking reads.
    """

    url: str = field(repr=False)
    key: FleetKey
    redis: Redis
    reading: Redis
    # The threads of the loop's default executor may all be waiting for S3.
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "fleet"))
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
            connection._closing.push_async_callback(connection.reading.aclose)
            connection._closing.push_async_callback(connection.redis.aclose)
            await connection._check()
            yield connection

    @property
    def shown(self) -> str:
        """Return the address without its password."""
        return _shown(self.url)

    def blocking(self) -> BlockingRedis:
        """Return a blocking client for use in threads; it is closed with this connection."""
        client = BlockingRedis.from_url(
            self.url, socket_timeout=_COMMAND_S, socket_connect_timeout=_COMMAND_S,
            retry=BlockingRetry(NoBackoff(), 0),
        )  # fmt: skip
        self._closing.callback(client.close)
        return client

    async def sealed(self, message: BaseModel, *, to: str) -> bytes:
        """Return a message as JSON, sealed for one receiver; a long one is sealed in a thread."""

        def seal() -> bytes:
            return self.key.seal(message.model_dump(), to=to)

        is_long = least_chars(vars(message), LONG_BYTES) > LONG_BYTES
        return await self._in_thread(seal) if is_long else seal()

    async def opened(self, validate: Callable[[Any], T], sealed: bytes, *, to: str) -> T | None:
        """Return a message as `read` does; a long one is opened in a thread."""
        read = partial(self.read, validate, sealed, to=to)
        # A compressed message may be long once it is decompressed.
        return await self._in_thread(read) if self.key.is_compressed(sealed) else read()

    def read(self, validate: Callable[[Any], T], sealed: bytes, *, to: str) -> T | None:
        """Open and validate a sealed message; return None if it must be dropped.

        Args:
            validate: Returns the message of a JSON object, or raises `ValidationError`.
            sealed: The message, sealed.
            to: Its receiver.
        """
        try:
            return validate(self.key.opened(sealed, to=to))
        except (Forged, ValidationError) as error:
            log.warning("fleet message dropped", extra={"reason": str(error)})
            return None

    async def _in_thread(self, act: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    async def send(self, to: str, message: BaseModel) -> None:
        """Append a message to the stream of a host or node.

        Raises:
            REDIS_FAILURES: It was not appended, or Redis did not answer.
        """
        stream, sealed = redis_key("stream", to), await self.sealed(message, to=to)
        async with self.redis.pipeline(transaction=False) as both:
            both.xadd(stream, {"sealed": sealed})
            # The stream of a dead receiver expires.
            both.pexpire(stream, HOUR_MS)
            # If redis-py raised the error, it would add the message to its text.
            added, _ = await both.execute(raise_on_error=False)
        if isinstance(added, Exception):
            raise added

    async def history(self) -> str:
        """Return the `master_replid` of Redis: a restart and a failover change it, as does a first replica.

        Raises:
            REDIS_FAILURES: Redis does not answer.
        """
        return str((await self.redis.info("replication")).get("master_replid", ""))

    async def revoke_start(self, call: str) -> bool:
        """Delete the `begin` key of a call; return whether nobody had deleted it before.

        A key of an earlier history proves nothing: a Redis that restarted, or a replica that took over, may
        have lost its deletion.

        Raises:
            REDIS_FAILURES: Redis does not answer.
        """
        key = redis_key("begin", call)
        async with self.redis.pipeline() as whole:
            whole.get(key)
            whole.delete(key)
            whole.info("replication")
            begin, _, facts = await whole.execute()
        return bool(begin) and begin == str(facts.get("master_replid", "")).encode()

    async def consume(
        self, name: str, validate: Callable[[Any], T], receive: Callable[[T], Awaitable[None]]
    ) -> None:
        """Read the stream of this process forever, deleting each entry once it was received.

        Args:
            name: Name of this process in the fleet.
            validate: As for `read`.
            receive: Handles a message; must not raise.
        """
        stream, done = redis_key("stream", name), list[bytes]()

        async def read() -> None:
            # Always from the start: received entries are deleted, and the clock of Redis may be set back.
            async with self.reading.pipeline(transaction=False) as both:
                if done:
                    both.xdel(stream, *done)
                both.xread({stream: "0-0"}, count=_MOST_AT_ONCE, block=_READ_MS)
                replies = await both.execute()
            done.clear()
            entries: list[Any] = next(iter(dict(replies[-1]).values()), [])
            if entries and isinstance(entries[0], list):
                # redis-py returns a nested list with `protocol=3` in the address.
                (entries,) = entries
            for entry, fields in entries:
                done.append(entry)
                message = await self.opened(validate, fields.get(b"sealed", b""), to=name)
                if message is not None:
                    await receive(message)
                # Let other tasks of the loop run.
                await asyncio.sleep(0)

        await repeat(read)

    async def _check(self) -> None:
        """Refuse a Redis that does not answer, or that may evict calls when its memory is full."""
        try:
            await self.redis.ping()
            # Some ACLs withhold INFO, as one of the @dangerous commands.
            if not await self.history():
                raise UsageError(f"redis_url: Redis at {self.shown} names no master_replid in INFO")
        except NoPermissionError as error:
            raise UsageError(f"redis_url: {self.shown} must allow INFO replication: {error}") from error
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
    # Commands wait for a free connection. No retries: only the caller knows whether one is safe.
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=_CONNECTIONS,
        timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=_COMMAND_S,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)


def checked_address(url: str, *, insecure: bool) -> str:
    """Return a Redis address if it is safe to use.

    Write access to Redis controls what worker nodes do; read access reveals arguments and results of all
    users. A Redis on another machine therefore needs TLS with a verified certificate, and a password,
    unless the operator declares the network safe.

    Args:
        url: The address.
        insecure: Whether a Redis on another machine may lack TLS and a password.

    Raises:
        UsageError: It is not a Redis address, or the connection would not be protected.
    """
    try:
        # Parsed as the clients parse it.
        options: Any = parse_url(url)
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise UsageError(f"redis_url: {error}; {_FORMS}") from error
    if not options.get("path" if scheme == "unix" else "host"):
        raise UsageError(f"redis_url does not name a server; {_FORMS}")
    if insecure or scheme == "unix" or is_loopback(options["host"]):
        return url
    lacking = list[str]()
    if scheme != "rediss":
        lacking.append("TLS")
    elif options.get("ssl_cert_reqs", "required") != "required" or not options.get(
        "ssl_check_hostname", True
    ):
        lacking.append("a check of its certificate (ssl_cert_reqs, ssl_check_hostname)")
    if not options.get("password"):
        lacking.append("a password")
    if lacking:
        raise UsageError(
            f"redis_url: Redis at {_shown(url)} is on another machine and would be reached without "
            f"{' and '.join(lacking)}; write rediss://:PASSWORD@HOST:PORT (?ssl_ca_certs=FILE for a CA "
            "of your own), or, where nobody else is on that network, add --redis-insecure"
        )
    return url


def _shown(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    return f"{parts.scheme}://{parts.hostname}:{parts.port or _PORT}"
