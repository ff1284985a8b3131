"""The steps in Redis that are done whole or not at all, each a script with its contract in its head.

Source: Redis, "Scripting with Lua"; EVALSHA.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, cast

from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.exceptions import NoScriptError

__all__ = [
    "BEGIN", "COUNT", "PLACE", "RELEASE", "REVOKE", "SESSION_CLAIM", "SESSION_END", "SESSION_LEAVE",
    "SESSION_USE", "TURNS", "Script",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """One of them, by the name of its file."""

    name: str
    text: str = field(init=False, repr=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        text = files(__package__).joinpath(f"scripts/{self.name}.lua").read_text()
        object.__setattr__(self, "text", text)
        # Redis names scripts so.
        object.__setattr__(self, "digest", hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    async def run(self, redis: Redis, keys: Sequence[str], *arguments: str | int | float) -> Any:
        """Run it; what it returns is what Redis makes of it, texts as bytes."""
        values = (*keys, *map(str, arguments))
        try:
            return await cast("Any", redis.evalsha(self.digest, len(keys), *values))
        except NoScriptError:
            return await cast("Any", redis.eval(self.text, len(keys), *values))

    def run_now(self, redis: BlockingRedis, keys: Sequence[str], *arguments: str | int) -> Any:
        """Run it in a thread, which waits for the answer."""
        values = (*keys, *map(str, arguments))
        try:
            return redis.evalsha(self.digest, len(keys), *values)
        except NoScriptError:
            return redis.eval(self.text, len(keys), *values)


PLACE = Script("place")
BEGIN = Script("begin")
RELEASE = Script("release")
REVOKE = Script("revoke")
COUNT = Script("count")
TURNS = Script("turns")
SESSION_USE = Script("session_use")
SESSION_LEAVE = Script("session_leave")
SESSION_CLAIM = Script("session_claim")
SESSION_END = Script("session_end")
