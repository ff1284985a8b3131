"""Sessions over HTTP, as the SDK keeps them: who may speak in one, and what it is to speak in it.

Source: MCP specification 2025-11-25, "Streamable HTTP", session management.
"""

import logging
import math
from collections.abc import Callable

import anyio
from mcp.server.auth.middleware.bearer_auth import (
    AuthenticatedUser,
    AuthorizationContext,
    authorization_context,
)
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import INTERNAL_ERROR
from starlette.responses import Response
from starlette.types import Scope

from runner.errors import CallError, Code
from runner.protocol.internals.dispatch import SessionConnection

__all__ = ["HttpSession", "HttpSessions", "bound_sessions"]

log = logging.getLogger(__name__)


def bound_sessions(
    manager: StreamableHTTPSessionManager, *, most: int, user: Callable[[], str | None]
) -> None:
    """Let no user have more than `most` sessions: one more ends the user's own that was idle longest.

    A client whose session has ended begins another, as the protocol asks of it. A session in use, by a call
    or a stream that is open, is not ended: where all of them are, the new one is refused.

    Args:
        manager: The SDK's, which bounds the sessions of all.
        most: Sessions of one user at a time.
        user: Returns whose the present request is; None stands for those of whom that cannot be said.
    """
    admit = manager._admit_session
    owners: dict[str, str | None] = {}

    def admit_within(asking: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        owner = user()
        for ended in [key for key in owners if key not in manager._server_instances]:
            del owners[ended]
        mine = [key for key, whose in owners.items() if whose == owner]
        if len(mine) >= most:
            _end_idlest(manager, mine, owner)
        admitted = admit(asking)
        if admitted is not None and admitted.mcp_session_id is not None:
            owners[admitted.mcp_session_id] = owner
        return admitted

    manager._admit_session = admit_within  # type: ignore[method-assign, assignment]


def _end_idlest(manager: StreamableHTTPSessionManager, sessions: list[str], owner: str | None) -> None:
    """End the session that was idle longest, as the SDK does after a while.

    Raises:
        CallError: `E_BUSY`; none of them is idle.
    """
    # The next to end of itself. One without an end is in use, or has not begun.
    idle = {
        key: scope
        for key in sessions
        if (scope := manager._server_instances[key].idle_scope) is not None and scope.deadline < math.inf
    }
    if not idle:
        raise CallError(
            Code.E_BUSY,
            f"all {len(sessions)} MCP sessions that a user may have (max_sessions_per_user) are in use; "
            "end one, or close a stream that is open",
        )
    idlest = min(idle, key=lambda key: idle[key].deadline)
    manager._server_instances.pop(idlest)
    manager._session_owners.pop(idlest, None)
    idle[idlest].cancel()
    log.info("an idle session made room for another", extra={"user": owner, "sessions": len(sessions)})


class HttpSessions:
    """The sessions of one server.

    Args:
        manager: The SDK's.
        connected: Returns the connection of a session.
    """

    def __init__(
        self, manager: StreamableHTTPSessionManager, connected: Callable[[str], SessionConnection | None]
    ) -> None:
        self._manager = manager
        self._connected = connected

    def of(self, scope: Scope, session: str) -> "HttpSession | None":
        """Return the session in which a request speaks, if it is open, its own, and as usual.

        None otherwise, also where events are stored to be sent once more, or where the SDK looks at `Host`
        and `Origin` itself: then the SDK has to answer.
        """
        transport = self._manager._server_instances.get(session)
        connected = self._connected(session)
        if transport is None or connected is None:
            return None
        user = scope.get("user")
        asking = authorization_context(user) if isinstance(user, AuthenticatedUser) else None
        if asking != self._manager._session_owners.get(session):
            return None
        is_idle = transport.idle_scope is not None and transport.idle_scope.cancel_called
        is_special = (
            transport._event_store is not None
            or transport._security.settings.enable_dns_rebinding_protection
            or transport.mcp_session_id != session
        )
        if transport.is_terminated or is_idle or is_special:
            return None
        return HttpSession(session, transport, connected)


class HttpSession:
    """One session, at the time of one request.

    Attributes:
        id: Of the session.
        connected: Its connection.
    """

    def __init__(
        self, session: str, transport: StreamableHTTPServerTransport, connected: SessionConnection
    ) -> None:
        self.id = session
        self.connected = connected
        self._transport = transport
        self._holds: anyio.CancelScope | None = None

    @property
    def is_over(self) -> bool:
        """Whether the session has been ended meanwhile; of its requests nothing more is said then."""
        return self._transport.is_terminated

    @property
    def wants_json(self) -> bool:
        """Whether each answer is one body of JSON, and nothing is said before."""
        return self._transport.is_json_response_enabled

    def ended(self) -> Response:
        """Return the answer in JSON to a request whose session has been ended meanwhile."""
        said = "Session terminated before the request completed"
        return self._transport._create_error_response(said, 500, INTERNAL_ERROR)  # type: ignore[arg-type]

    def hold(self) -> None:
        """Keep the session from being ended for being idle, as each request does; `let_go` ends that."""
        idle = self._transport.idle_scope
        if idle is not None and self._transport._idle_timeout is not None:
            self._holds = idle
            self._transport._requests_in_flight += 1
            idle.deadline = math.inf

    def let_go(self) -> None:
        """Let it be idle again, unless another request holds it."""
        idle, timeout_s = self._holds, self._transport._idle_timeout
        if idle is not None and timeout_s is not None:
            self._transport._requests_in_flight -= 1
            if not self._transport._requests_in_flight:
                idle.deadline = anyio.current_time() + timeout_s
