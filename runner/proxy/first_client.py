"""The client that a proxy serves first, from the first line that it sends.

A server is told who its client is as it is connected to. So it need not be started a second time for that.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    ClientCapabilities,
    Implementation,
    InitializeRequestParams,
    JSONRPCRequest,
)

from runner.protocol.messages import Unreadable, read_message
from runner.proxy.remote import Announced

__all__ = ["FirstClient"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstClient:
    """A client as it begins.

    Attributes:
        announced: What servers hear of it.
        has_sessions: Whether its protocol has sessions.
    """

    announced: Announced
    has_sessions: bool

    @classmethod
    def of(cls, read: bytes) -> "FirstClient | None":
        """Return the client that has sent a line; None if that does not begin a connection."""
        try:
            message = read_message(read.partition(b"\n")[0])
            if not isinstance(message, JSONRPCRequest):
                return None
            params = message.params or {}
            if message.method == "initialize":
                initialize = InitializeRequestParams.model_validate(params, by_name=False)
                return cls(
                    announced=Announced(info=initialize.client_info, capabilities=initialize.capabilities),
                    has_sessions=True,
                )
            meta = params.get("_meta")
            if not isinstance(meta, Mapping) or PROTOCOL_VERSION_META_KEY not in meta:
                return None
            info, able = meta.get(CLIENT_INFO_META_KEY), meta.get(CLIENT_CAPABILITIES_META_KEY)
            announced = Announced(
                info=None if info is None else Implementation.model_validate(info, by_name=False),
                capabilities=None if able is None else ClientCapabilities.model_validate(able, by_name=False),
            )
            return cls(announced=announced, has_sessions=False)
        except (Unreadable, ValueError):
            return None
