"""Events of a call for the interfaces of its user: what it publishes, shows and changes while it runs."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from runner.contract.display import decide
from runner.contract.interface_events import announce
from runner.errors import CallError
from runner.steps.client_message import referenced
from runner.steps.light_events import without_bytes
from runner.steps.listener import CallListener
from runner.steps.request import Completed, Request
from runner.store.protocol import Origin
from runner.toolset.call_services import CallServices
from runner.users.events import LIST_CHANGED, UPDATED
from sandbox.deadlines import Deadlines

__all__ = ["announce_files", "is_watched", "listener_of"]

log = logging.getLogger(__name__)


def listener_of(
    service: CallServices, request: Request, tool: str | None, deadlines: Deadlines
) -> CallListener:
    """Return the listener of a request on behalf of its client.

    Args:
        service: What serves it.
        request: The request.
        tool: The tool that it calls, if it calls one.
        deadlines: Its time limits.
    """
    user, session = request.user.segment, request.facts.session_id
    meta = request.params.get("_meta")
    token = meta.get("progressToken") if isinstance(meta, Mapping) else None
    # By its own token an interface knows the calls that it made itself.
    about = {"call": request.id, "tool": tool} | ({} if token is None else {"progress_token": token})

    def publish(event: Mapping[str, Any]) -> None:
        if service.events.has_listener(user=user, session=session):
            service.events.publish({**without_bytes(dict(event)), **about}, user=user, session=session)

    return CallListener(
        client=request.client,
        params=request.params,
        levels=request.levels,
        deadlines=deadlines if request.is_awaited else replace(deadlines, idle_s=deadlines.total_s),
        user=user,
        state=service.state,
        capabilities=request.facts.client_capabilities,
        publish=publish,
        change=partial(_changed, service, request),
        show=partial(_show, service, request),
        tools=request.tools,
    )


def is_watched(service: CallServices, request: Request) -> bool:
    """Return whether an interface of the user receives events of a request."""
    return service.events.has_listener(user=request.user.segment, session=request.facts.session_id)


def announce_files(
    service: CallServices,
    request: Request,
    completed: Completed,
    publish: Callable[[Mapping[str, Any]], None],
) -> None:
    """Publish the files of a result, if an interface of the user receives events."""
    if is_watched(service, request):
        value = referenced(completed.processed)
        for event in announce(value, decide(value, allowed_origins=service.settings.iframe_origins)):
            publish(event)


async def _show(
    service: CallServices, request: Request, content: bytes, name: str, mime: str | None
) -> Mapping[str, Any] | None:
    """Store content that a running call shows in its user's interface, if one is open."""
    if not is_watched(service, request):
        return None
    files = service.files(request.user, trace=request.id)
    try:
        record = await files.put(content, name=name, mime=mime, origin=Origin.GENERATED, temporary=True)
    except CallError as error:
        log.warning("live file not published", extra={"problem": error.message})
        return None
    return {"uri": f"artifact://{record.id}", "size": record.size, "sha256": record.sha256}


def _changed(service: CallServices, request: Request, method: str, uri: object) -> None:
    """Publish the changes of a call to the user's clients."""
    kind = method.removeprefix("notifications/").removesuffix("/list_changed")
    user, session = request.user.segment, request.user.session
    if kind in ("tools", "prompts", "resources"):
        service.events.publish({"type": LIST_CHANGED, "list": kind}, user=user, session=session)
    elif kind == "resources/updated" and isinstance(uri, str):
        service.events.publish({"type": UPDATED, "uri": uri}, user=user, session=session)
