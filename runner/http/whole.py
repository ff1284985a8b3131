"""The body of a request, read before the application that gets it; and a client that left before its end."""

import logging

from starlette.types import Message, Receive, Scope

__all__ = ["again", "note_left"]

log = logging.getLogger(__name__)


def again(first: Message, receive: Receive) -> Receive:
    """Return a `receive` that repeats a message before the rest."""
    sent = False

    async def received() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return first

    return received


def note_left(scope: Scope) -> None:
    """Log a client that disconnected before its request was complete."""
    log.info("client disconnected during request", extra={"method": scope["method"], "path": scope["path"]})
