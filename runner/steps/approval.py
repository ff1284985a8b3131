"""Approval of a call by a person before it runs: a waiting call holds no worker or place; no timer runs.

A client with a session gets an elicitation during the call. A client of protocol 2026-07-28, without session,
gets the question as the result, and sends the call again with the answer. If the client has no forms, or the
rule requires the operator, the call is refused with a request id. `runner approve` lets one such call pass.

Only a client's answer to a question and the operator's command approve: no argument, no requestState of a
tool and no message of a server does.

Source: MCP specification 2025-06-18 and 2025-11-25, "Elicitation"; 2026-07-28, "Multi Round-Trip Requests".
"""

import asyncio
import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from runner.contract.error_messages import approval_needed, approval_refused
from runner.formats.bounded_text import cut, cut_counted
from runner.formats.json_walks import least_chars
from runner.formats.terminal_text import one_line
from runner.settings.approvals import ApprovalSettings, rule_for
from runner.steps.inputs import read_arguments
from runner.steps.listener import CallListener, ClientRefusal
from runner.steps.request import SHORT_BYTES, Completed, Request
from runner.toolset.approvals import PendingApproval, key_of
from runner.toolset.call_services import CallServices

__all__ = ["Hold", "hold_of"]

_ELICIT = "elicitation/create"
_QUESTION = "toolcell_approval"
_MOST_SHOWN = 20
_NAME_CHARS = 80
_VALUE_CHARS = 300
# Characters of a value that are read: one escape may replace several hidden characters.
_MOST_READ = 4 * _VALUE_CHARS
_FORM = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Run this call once"}},
    "required": ["approve"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A call that a rule holds.

    Attributes:
        service: The services of the server.
        name: Name of the rule.
        rule: The rule.
        key: Digest of server, user, tool, arguments and version.
        server: Targets of the server, for people.
        lines: A line for each argument, for people.
    """

    service: CallServices
    name: str
    rule: ApprovalSettings
    key: str
    server: str
    lines: tuple[str, ...]

    async def pass_on(
        self, request: Request, listener: CallListener
    ) -> tuple[Request, dict[str, Any] | None]:
        """Return the request for the tool, and the question to the client if approval is still pending.

        Raises:
            CallError: `E_APPROVAL`: it is not approved. `E_BUSY`: too many calls wait. `E_STORE`: the state
                folder cannot be used.
        """
        approvals, expires_s = self.service.approvals, self.rule.expires_s
        state, _, of_tool = str(request.params.get("requestState") or "").partition(".")
        resumed = approvals.resume(state, self.key, _rest(request.params.get("inputResponses")))
        if resumed:
            # It was approved, and its tool has asked the client for more input.
            request.steps.approval = f"approved before, {self.name}"
            rest = {key: item for key, item in request.params.items() if key != "requestState"}
            return replace(request, params={**rest, **({"requestState": of_tool} if of_tool else {})}), None
        plain = {
            key: item for key, item in request.params.items() if key not in ("requestState", "inputResponses")
        }
        if resumed is False:
            answers = request.params.get("inputResponses")
            self._check(request, answers.get(_QUESTION) if isinstance(answers, Mapping) else None)
            return replace(request, params=plain), None
        by_operator = await asyncio.to_thread(approvals.files.use, self.key)
        if by_operator is not None:
            request.steps.approval = f"{'approved' if by_operator else 'refused'} by operator, {self.name}"
            if not by_operator:
                raise approval_refused(request.tool, rule=self.name, why="the operator refused the call")
            return replace(request, params=plain), None
        question = {"message": self._message(request), "requestedSchema": _FORM}
        if self.rule.by == "client" and listener.may_ask(_ELICIT, question):
            if request.facts.protocol not in HANDSHAKE_PROTOCOL_VERSIONS:
                request.steps.approval = f"waits for client, {self.name}"
                state = approvals.wait(self.key, request.user.name, is_approved=False, expires_s=expires_s)
                questions = {_QUESTION: {"method": _ELICIT, "params": question}}
                return request, {
                    "resultType": "input_required", "inputRequests": questions, "requestState": state
                }  # fmt: skip
            try:
                # A stopping server waits for a person no longer than for a call.
                async with self.service.drain.call(listener.tell), asyncio.timeout(expires_s) as limit:
                    with approvals.question(request.user.name, limit):
                        answer = await listener.ask(_ELICIT, question)
            except TimeoutError:
                request.steps.approval = f"expired, {self.name}"
                why = f"no one answered within {expires_s:.0f} seconds, or before too many further questions"
                raise approval_refused(request.tool, rule=self.name, why=why) from None
            except ClientRefusal:
                # It declares forms but shows none, like a client that runs unattended.
                pass
            else:
                self._check(request, answer)
                return replace(request, params=plain), None
        pending = PendingApproval(
            id=secrets.token_hex(4),
            key=self.key,
            user=request.user.name,
            tool=cut(request.tool, _NAME_CHARS),
            server=cut(self.server, _VALUE_CHARS),
            rule=self.name,
            arguments=self.lines,
            expires_s=expires_s,
        )
        pending = await asyncio.to_thread(approvals.files.request, pending)
        request.steps.approval = f"waits for operator as {pending.id}, {self.name}"
        raise approval_needed(request.tool, rule=self.name, name=pending.id, expires_s=expires_s)

    def followed(self, request: Request, completed: Completed) -> Completed:
        """Return the end of an approved call. After a question of its tool, the resumed call passes too.

        Raises:
            CallError: `E_BUSY`: too many calls wait.
        """
        interim = completed.interim
        if interim is None or interim.get("resultType") != "input_required":
            return completed
        rest = _rest(interim.get("inputRequests"))
        state = self.service.approvals.wait(
            self.key, request.user.name, is_approved=True, expires_s=self.rule.expires_s, rest=rest
        )
        if interim.get("requestState") is not None:
            state = f"{state}.{interim['requestState']}"
        return replace(completed, interim={**interim, "requestState": state})

    def _check(self, request: Request, answer: object) -> None:
        """Record the answer of a client, and refuse the call unless the answer explicitly approves it."""
        fields = answer if isinstance(answer, Mapping) else {}
        content = fields.get("content")
        is_yes = isinstance(content, Mapping) and content.get("approve") is True
        is_approved = fields.get("action") == "accept" and is_yes
        request.steps.approval = f"{'approved' if is_approved else 'refused'} by client, {self.name}"
        if not is_approved:
            raise approval_refused(
                request.tool, rule=self.name, why="the person at the client did not approve it"
            )

    def _message(self, request: Request) -> str:
        tool, user = cut(one_line(request.tool), _NAME_CHARS), one_line(request.user.name)
        head = f"Run {tool} of {cut(self.server, _VALUE_CHARS)} once for {user}?"
        return "\n".join([head, *(f"  {line}" for line in self.lines), f"Rule: approvals.{self.name}"])


async def hold_of(
    service: CallServices,
    request: Request,
    *,
    places: Sequence[tuple[str, str]],
    may_destroy: bool,
    is_listed: bool,
) -> Hold | None:
    """Return the hold of a call, if a rule holds it.

    Args:
        service: The services of the server.
        request: The call.
        places: Targets of the server, each as a name for people and in full.
        may_destroy: Whether its tool counts as destructive.
        is_listed: Whether the server lists a tool of that name.

    Raises:
        CallError: `E_INVALID_ARGUMENT`: the arguments are not an object.
    """
    meta = request.params.get("_meta")
    chosen = (meta.get("fastmcp") if isinstance(meta, Mapping) else None) or None

    def judge() -> Hold | None:
        arguments = read_arguments(request.params.get("arguments"))
        found = rule_for(
            service.settings.approvals,
            tool=request.tool if is_listed else None,
            user=request.user.name,
            # The annotations are those of the newest version.
            is_destructive=may_destroy or chosen is not None,
            arguments=arguments,
        )
        if found is None:
            return None
        # The chosen version is not among the arguments; an approval for one version must not fit another.
        call = arguments if chosen is None else [arguments, chosen]
        key = key_of("\n".join(place for _, place in places), request.user.name, request.tool, call)
        lines = (*(() if chosen is None else _lines({"_meta.fastmcp": chosen})), *_lines(arguments))
        server = ", ".join(name for name, _ in places)
        return Hold(service=service, name=found[0], rule=found[1], key=key, server=server, lines=lines)

    is_long = least_chars(request.params, SHORT_BYTES) > SHORT_BYTES
    return await asyncio.to_thread(judge) if is_long else judge()


def _rest(named: object) -> str:
    """Return the digest of the names of a tool's questions, or of their answers."""
    names = sorted(map(str, named)) if isinstance(named, Mapping) else []
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def _lines(arguments: Mapping[str, object]) -> tuple[str, ...]:
    """Return a line for each argument; if characters or arguments are left out, with their number."""
    lines = []
    for name, value in list(arguments.items())[:_MOST_SHOWN]:
        text = json.dumps(value, ensure_ascii=False)
        shown = one_line(text[:_MOST_READ])
        if len(text) > _MOST_READ or len(shown) > _VALUE_CHARS:
            shown = f"{shown[:_VALUE_CHARS]}… ({len(text)} characters)"
        lines.append(f"{cut_counted(one_line(name[:_MOST_READ]), _NAME_CHARS)} = {shown}")
    if len(arguments) > _MOST_SHOWN:
        lines.append(f"and {len(arguments) - _MOST_SHOWN} more")
    return tuple(lines) or ("without arguments",)
