"""The endpoint of models that the operator configured: where it is, what it speaks, with which key.

The key is in this process and in the headers of requests to that one address. Nothing that is said of an
answer or of a fault has it.

Source: decision 47.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

from runner.errors import UsageError
from runner.playground import anthropic_api, openai_api
from runner.playground.loose_event import error_text, object_of_json
from runner.playground.model_names import ModelNames
from runner.playground.model_turn import Event, Turn
from runner.settings.secrets import CallSecrets, read_key_file
from runner.settings.settings import Settings

__all__ = ["Endpoint", "ModelAnswer", "ModelRequest", "Unspoken"]

log = logging.getLogger(__name__)

_SETTING = "playground_model_key"
_KEY = re.compile(r"[!-~]+")
_MOST_TOLD = 300


class ModelAnswer(Protocol):
    """An answer of one of the APIs while it comes."""

    def read(self, data: str) -> Iterator[Event]:
        """Yield what an event of the stream says. Raises `ValueError` where it is none of this API."""

    def end(self) -> Iterator[Event]:
        """Yield what is known once the stream has ended; nothing where it broke off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request to the endpoint.

    Attributes:
        url: Its address.
        headers: The key is among them.
        body: JSON.
        names: The names of the tools in it.
        answer: What reads the answer.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: Mapping[str, Any]
    names: ModelNames
    answer: ModelAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint.

    Attributes:
        url: Its address, without what stands behind it for each kind of request.
        api: What it speaks: `openai` or `anthropic`.
        models: Names of its models; the first is the default.
        key_setting: Name of the setting that has the key, or would have it.
        max_tokens: Most tokens of an answer, if there is a bound.
        images: Whether pictures may be given to the models.
        silence_s: How long it may be silent, in seconds.
        key_file: The file that has the key, if one has.
    """

    url: str
    api: str
    models: tuple[str, ...]
    key_setting: str
    max_tokens: int | None
    images: bool
    silence_s: float
    key_file: Path | None
    _key: str | None = field(repr=False)

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """Return the endpoint that the settings name; None if they name none.

        Raises:
            UsageError: Its key cannot be had, or can stand in no header.
        """
        if settings.playground_model_url is None:
            return None
        return cls(
            url=settings.playground_model_url,
            api=settings.playground_model_api,
            models=settings.playground_model,
            key_setting=_SETTING if settings.playground_model_key is not None else f"{_SETTING}_file",
            max_tokens=settings.playground_model_max_tokens,
            images=settings.playground_model_images,
            silence_s=settings.playground_model_timeout_s,
            key_file=settings.playground_model_key_file,
            _key=_key_of(settings),
        )

    def renewed(self) -> Self:
        """Return this endpoint with the key that its file has now, for one turn.

        A turn keeps its key: what it says is searched for that one. While the file cannot be used, as in the
        middle of a change, the key before holds, and the log says so.
        """
        if self.key_file is None:
            return self
        try:
            key = _of_file(self.key_file)
        except UsageError as error:
            log.warning(
                "the key for models cannot be read anew; the one before holds", extra={"problem": str(error)}
            )
            return self
        return self if key == self._key else replace(self, _key=key)

    @property
    def host(self) -> str:
        """Return where what people write goes, as they are told: host and port."""
        return urlsplit(self.url).netloc

    def request(self, turn: Turn) -> ModelRequest:
        """Return the request for a turn."""
        called = (call.name for message in turn.messages for call in getattr(message, "calls", ()))
        names = ModelNames.of([*(tool.name for tool in turn.tools), *called])
        if self.api == "anthropic":
            path, proves = anthropic_api.PATH, anthropic_api.headers(self._key)
            body, answer = (
                anthropic_api.body(turn, names, self.max_tokens),
                anthropic_api.AnthropicAnswer(names),
            )
            return self._request(path, proves, body, names, answer)
        path, proves = openai_api.PATH, openai_api.headers(self._key)
        return self._request(
            path, proves, openai_api.body(turn, names, self.max_tokens), names, openai_api.OpenAIAnswer(names)
        )

    def _request(
        self,
        path: str,
        proves: Mapping[str, str],
        body: Mapping[str, Any],
        names: ModelNames,
        answer: ModelAnswer,
    ) -> ModelRequest:
        headers = {
            **proves,
            "content-type": "application/json",
            "accept": "text/event-stream",
            # So that the bound of an answer is one of what is read.
            "accept-encoding": "identity",
        }
        return ModelRequest(url=self.url + path, headers=headers, body=body, names=names, answer=answer)

    def why(self, status: int, said: str) -> str:
        """Say what an answer with another status than 200 means, and what to do.

        Args:
            status: The status.
            said: The beginning of its body. Of what stands there about keys nothing is told.
        """
        if status == 401 and self._key is None:
            return f"the endpoint wants a key; its operator sets {self.key_setting}"
        if status in (401, 403):
            return f"the endpoint refused the key in {self.key_setting} (HTTP {status})"
        if 300 <= status < 400:
            return (
                f"the endpoint redirects (HTTP {status}), which is not followed; set playground_model_url to "
                "the address at which it answers"
            )
        what = _STATUS.get(status) or (
            f"the endpoint failed (HTTP {status}); try again later"
            if status >= 500
            else f"the endpoint refused the request (HTTP {status})"
        )
        told = self.told(_error_in(said))[:_MOST_TOLD]
        return f"{what}: {told}" if told else what

    def told(self, text: str) -> str:
        """Return a text without the key, should the endpoint have put it there."""
        return self._secrets().masked_text(text)

    def unspoken(self) -> "Unspoken":
        """Return what keeps the key out of a text that comes in pieces."""
        return Unspoken(self._key, self.told)

    def masked(self, event: Event) -> Event:
        """Return an event without the key; the event itself may be changed."""
        return self._secrets().masked(event)

    def _secrets(self) -> CallSecrets:
        return CallSecrets({} if self._key is None else {self.key_setting: self._key})


_STATUS = {
    404: "the endpoint knows no such address or model (HTTP 404); look at playground_model_url and "
    "playground_model",
    413: "the endpoint finds this conversation too long (HTTP 413); begin a new one",
    429: "the endpoint takes no more requests now (HTTP 429); try again later",
}


def _error_in(said: str) -> str:
    try:
        return error_text(object_of_json(said))
    except ValueError:
        # A page for people, or anything: nobody here can say what is in it.
        return ""


def _key_of(settings: Settings) -> str | None:
    if settings.playground_model_key_file is not None:
        return _of_file(settings.playground_model_key_file)
    if settings.playground_model_key is not None:
        return _checked(settings.playground_model_key.get_secret_value())
    return None


def _of_file(file: Path) -> str:
    return _checked(read_key_file(f"{_SETTING}_file", file))


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise UsageError(
            f"{_SETTING}: the key has a blank or a letter beyond ASCII in it, which no header can have"
        )
    return key


class Unspoken:
    """Keeps a key out of a text that comes in pieces, over which it may be spread.

    Args:
        key: The key, if there is one.
        told: Returns a text without it.
    """

    def __init__(self, key: str | None, told: Callable[[str], str]) -> None:
        self._key = key or ""
        self._told = told
        self._held = ""

    def take(self, piece: str) -> str:
        """Return what can be said by now: all but an end with which the key may begin."""
        text = self._told(self._held + piece)
        longest = min(len(self._key) - 1, len(text))
        kept = next((n for n in range(longest, 0, -1) if text.endswith(self._key[:n])), 0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> str:
        """Return what was held back, once nothing more comes."""
        held, self._held = self._held, ""
        return held
