"""Authorisation of a request for a tool, and the answer to a refused one. Pure.

Logins apply over HTTP only: on stdio and in a shell the caller is the user of the operating system, and there
is nothing to log in to. Requests of a widget are marked as such by the host that shows it, which has obtained
consent from a person where that is required.

Source: document 003, "Auth"; requirements S3-140, S3-143; decision C36; MCP Apps 2026-01-26, "Tool
Visibility".
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.contract.error_messages import not_for_code, not_for_widgets, unauthorized
from runner.contract.login_challenge import CHALLENGE_META, NO_AUTH, SCHEMES_META, challenge
from runner.contract.widget_dialects import CODE_CALL_META, WIDGET_CALL_META, WidgetRights
from runner.errors import CallError, Code
from runner.toolset.catalog import ToolSpec
from runner.worker.wire import RequestFacts

__all__ = [
    "authorize",
    "authorize_scopes",
    "authorize_widget",
    "callable_tools",
    "challenged",
    "with_schemes",
]


def authorize(spec: ToolSpec, facts: RequestFacts) -> None:
    """Refuse a request whose token satisfies none of the tool's security schemes.

    Raises:
        CallError: `E_UNAUTHORIZED`; the request has no token, or one without the scopes.
    """
    if facts.transport == "stdio":
        return
    if any(_satisfied(scheme, facts.token) for scheme in spec.security):
        return
    scopes = _scopes(next((scheme for scheme in spec.security if _scopes(scheme)), {}))
    raise unauthorized(spec.name, scopes=scopes, has_token=facts.token is not None)


def authorize_scopes(tool: str, scopes: Sequence[str], facts: RequestFacts) -> None:
    """Refuse a request whose token lacks a scope that the operator requires for a tool.

    Raises:
        CallError: `E_UNAUTHORIZED`.
    """
    if not _may(scopes, facts):
        raise unauthorized(tool, scopes=scopes, has_token=facts.token is not None)


def callable_tools(
    answered: Mapping[str, Any], scopes: Callable[[str], Sequence[str]], facts: RequestFacts
) -> dict[str, Any]:
    """Return a list of tools without those that the operator denies the caller.

    Args:
        answered: The list.
        scopes: Returns the scopes that the operator requires for a tool.
        facts: Facts about the request.
    """
    tools = answered.get("tools")
    if not isinstance(tools, list):
        return dict(answered)
    return {**answered, "tools": [tool for tool in tools if _may(scopes(_name(tool)), facts)]}


def authorize_widget(tool: str, rights: WidgetRights | None, params: Mapping[str, Any]) -> None:
    """Refuse a call by a widget or by code, unless its tool allows it.

    A call by a widget also needs a person's consent, where that is required.

    Args:
        tool: Name of the tool, as the client calls it.
        rights: Rights that the tool declares; None if they are unknown, which allows none.
        params: Params of the `tools/call`.

    Raises:
        CallError: `E_INVALID_ARGUMENT`: the call is not allowed; the message has a remedy for the author.
    """
    meta = params.get("_meta")
    if not isinstance(meta, Mapping):
        return
    if CODE_CALL_META in meta and (rights is None or not rights.for_model):
        raise not_for_code(tool)
    made = meta.get(WIDGET_CALL_META)
    if made is None:
        return
    if rights is None or not rights.may_call:
        raise not_for_widgets(tool, may_call=False)
    if rights.may_destroy and made != "asked":
        raise not_for_widgets(tool, may_call=True)


def challenged(
    message: dict[str, Any], error: CallError | None, *, resource_metadata: str | None
) -> dict[str, Any]:
    """Return the message of a call; an unauthorised one carries a login challenge.

    Args:
        message: The message for the client.
        error: Its error, if the runner made one.
        resource_metadata: Address of this server's metadata as a protected resource.
    """
    if error is None or error.code is not Code.E_UNAUTHORIZED:
        return message
    header = challenge(
        error.message,
        error=str(error.details["problem"]),
        scopes=error.details["scopes"],
        resource_metadata=resource_metadata,
    )
    return {**message, "_meta": {**message.get("_meta", {}), CHALLENGE_META: [header]}}


def with_schemes(answered: Mapping[str, Any]) -> dict[str, Any]:
    """Return a list of tools with their security schemes at the top level too.

    ChatGPT reads them there. FastMCP and the SDK lack the field, so a tool file cannot set it.
    """
    tools = answered.get("tools")
    if not isinstance(tools, list):
        return dict(answered)
    return {**answered, "tools": [_with_schemes(tool) for tool in tools]}


def _with_schemes(tool: Any) -> Any:
    meta = tool.get("_meta") if isinstance(tool, Mapping) else None
    schemes = meta.get(SCHEMES_META) if isinstance(meta, Mapping) else None
    return {SCHEMES_META: schemes, **tool} if isinstance(schemes, list) else tool


def _may(scopes: Sequence[str], facts: RequestFacts) -> bool:
    if facts.transport == "stdio" or not scopes:
        return True
    return _satisfied({"scopes": list(scopes)}, facts.token)


def _name(tool: Any) -> str:
    return str(tool.get("name")) if isinstance(tool, Mapping) else ""


def _satisfied(scheme: Mapping[str, Any], token: Mapping[str, Any] | None) -> bool:
    if scheme.get("type") == NO_AUTH["type"]:
        return True
    return token is not None and set(_scopes(scheme)) <= set(token.get("scopes") or ())


def _scopes(scheme: Mapping[str, Any]) -> Sequence[str]:
    scopes = scheme.get("scopes")
    return [str(scope) for scope in scopes] if isinstance(scopes, list) else []
