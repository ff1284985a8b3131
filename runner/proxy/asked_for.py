"""Requests of a server to its client, if the client has other servers too: its tasks, its progress.

The ids of a client's tasks are the client's, and tokens of progress each server's. Passed on as they are,
one server could ask for what the client has answered another, and would hear how far that is. So a server may
ask for those tasks only that the client has begun for it, and hears of nothing else.

Source: MCP specification 2025-11-25, "Tasks" ("Task Isolation and Access Control") and "Progress".
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types
from mcp.shared.exceptions import MCPError

__all__ = ["AskedFor", "labelled_question", "logged_by", "questions_by"]

# Of each kind; what was noted longest ago is forgotten first.
_MOST = 1000


@dataclass(slots=True, eq=False)
class AskedFor:
    """Requests of one server to one client."""

    _tasks: dict[str, None] = field(default_factory=dict)
    _tokens: dict[str, Any] = field(default_factory=dict)
    _questions: dict[str, None] = field(default_factory=dict)

    def noted(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the params of a question as the client gets them, with a token of progress of its own."""
        question = params.get("elicitationId")
        if isinstance(question, str):
            _keep(self._questions, question, None)
        meta = params.get("_meta")
        if not isinstance(meta, Mapping) or "progressToken" not in meta:
            return dict(params)
        token = secrets.token_hex(8)
        _keep(self._tokens, token, meta["progressToken"])
        return {**params, "_meta": {**meta, "progressToken": token}}

    def refused(self, data: object) -> None:
        """Take note of the questions with which the server has refused a request until they are answered."""
        questions = data.get("elicitations") if isinstance(data, Mapping) else None
        for each in questions if isinstance(questions, list) else ():
            if isinstance(each, Mapping) and isinstance(each.get("elicitationId"), str):
                _keep(self._questions, each["elicitationId"], None)

    def began(self, answer: Mapping[str, Any]) -> None:
        """Take note of the task that the client has made of a question, if it has made one."""
        task = answer.get("task")
        if isinstance(task, Mapping) and isinstance(task.get("taskId"), str):
            _keep(self._tasks, task["taskId"], None)

    def check(self, method: str, params: Mapping[str, Any]) -> None:
        """Refuse a request for a task that was not begun for this server.

        Raises:
            MCPError: It was not.
        """
        task = params.get("taskId")
        if method != "tasks/list" and not _is_in(self._tasks, task):
            message = f"there is no task {str(task)[:200]!r} that was begun for this server"
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=message)

    def own(self, method: str, answer: dict[str, Any]) -> dict[str, Any]:
        """Return a list of the client's tasks with those only that were begun for this server."""
        tasks = answer.get("tasks")
        if method != "tasks/list" or not isinstance(tasks, list):
            return answer
        named = (each for each in tasks if isinstance(each, Mapping))
        return {**answer, "tasks": [each for each in named if _is_in(self._tasks, each.get("taskId"))]}

    def has_question(self, news: Mapping[str, Any]) -> bool:
        """Return whether the news of a server are of a question that it has asked."""
        return _is_in(self._questions, news.get("elicitationId"))

    def translated(self, method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what the server hears of a notification of the client; None if it is of another server."""
        if method == "notifications/progress":
            token = params.get("progressToken")
            known = _is_in(self._tokens, token)
            return {**params, "progressToken": self._tokens[str(token)]} if known else None
        if method == "notifications/tasks/status" and not _is_in(self._tasks, params.get("taskId")):
            return None
        return dict(params)


def labelled_question(server: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of a question to a person with the name of the server that asks.

    A client shows people which server asks, and knows only the proxy.
    """
    message = params.get("message")
    return {**params, "message": f"{server} asks: {message}"} if isinstance(message, str) else dict(params)


def questions_by(server: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the server's name before each question with which it answers, in later eras."""
    questions = result.get("inputRequests")
    if not isinstance(questions, Mapping):
        return result
    named = {
        key: {**each, "params": labelled_question(server, each["params"])}
        if isinstance(each, Mapping) and isinstance(each.get("params"), Mapping)
        else each
        for key, each in questions.items()
    }
    return {**result, "inputRequests": named}


def logged_by(server: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of a log message with the name of the server that says it."""
    logger = params.get("logger")
    return {**params, "logger": f"{server}.{logger}" if isinstance(logger, str) else server}


def _is_in(noted: Mapping[str, Any], key: object) -> bool:
    return isinstance(key, str) and key in noted


def _keep(noted: dict[str, Any], key: str, value: Any) -> None:
    noted[key] = value
    while len(noted) > _MOST:
        del noted[next(iter(noted))]
