"""Secrets of calls: their rules, and their values from files or from an operator's command.

A value is in this process and, for one call, in the environment of the worker that serves it. The output of
a call is searched for the value, to prevent accidental leaks; code that has the value can always send it in
another form.

Source: `docs/decisions/0042-one-process-for-calls-with-secrets.md`; `SECURITY.md`.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from urllib.parse import quote, quote_plus

from runner.errors import UsageError
from runner.settings.secrets import SecretSettings
from runner.system.private_files import read_private

__all__ = ["NO_SECRETS", "CallSecrets", "Secrets", "read_secret", "secret_fault"]

T = TypeVar("T")

# A shorter value occurs in too many texts by chance, and would be masked there.
_LEAST_CHARS = 8
# The kernel's limit for one environment variable of a program that a tool starts is 128 KiB.
_MOST_BYTES = 64 * 1024
_COMMAND_S = 20.0
# Replacement for bytes that are not valid UTF-8.
_CUT_CHAR = "\ufffd"


def read_secret(name: str, secret: SecretSettings) -> str:
    """Return the value of a secret.

    Raises:
        UsageError: It cannot be read or used; the message has the reason and never the value.
    """
    if secret.file is not None:
        setting = f"secrets.{name}.file"
        return _value(f"{setting} {secret.file}", read_private(setting, secret.file, most_bytes=_MOST_BYTES))
    where = f"secrets.{name}.command {secret.command[0]}"
    return _value(where, _of_command(where, secret.command))


def _value(where: str, content: bytes) -> str:
    try:
        value = content.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{where}: the value is not UTF-8 text, as variables are") from None
    value = value.removesuffix("\n").removesuffix("\r")
    if "\0" in value:
        raise UsageError(f"{where}: the value has a zero byte in it, where a variable ends")
    if len(value) < _LEAST_CHARS:
        raise UsageError(
            f"{where}: the value has {len(value)} characters; "
            f"one of fewer than {_LEAST_CHARS} could not be kept out of results"
        )
    return value


def secret_fault(name: str, secret: SecretSettings) -> str | None:
    """Return why the value of a secret cannot be read now; None if it can.

    A command is only located, not run: it runs when a server starts, not to report on a configuration.
    """
    if secret.command:
        found = shutil.which(secret.command[0])
        return None if found else f"secrets.{name}.command {secret.command[0]}: there is no such program"
    try:
        read_secret(name, secret)
    except UsageError as error:
        return str(error)
    return None


def _of_command(where: str, command: tuple[str, ...]) -> bytes:
    try:
        # Its other output is not shown: it may contain the value, or how to get it.
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"{where} has not ended within {_COMMAND_S:g} seconds and was killed") from None
    except OSError as error:
        raise UsageError(f"{where} cannot be run: {error.strerror}") from error
    if ended.returncode:
        raise UsageError(
            f"{where} ended with status {ended.returncode}; run it by hand as this user to see why"
        )
    if len(ended.stdout) > _MOST_BYTES:
        raise UsageError(f"{where}: the value has more than {_MOST_BYTES} bytes, too many for a variable")
    return ended.stdout


@dataclass(frozen=True, slots=True)
class CallSecrets:
    """The secrets of one call.

    Attributes:
        values: Variables in the environment of its tool, by name.
    """

    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    def masked(self, value: T) -> T:
        """Return JSON in which no text or key has a value in it; objects and arrays are changed in place."""
        if not self.values:
            return value
        whole: list[Any] = [value]
        waiting: list[list[Any] | dict[str, Any]] = [whole]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                items = list(part.items())
                part.clear()
                part |= {self.masked_text(key): self._leaf(item, waiting) for key, item in items}
            else:
                part[:] = [self._leaf(item, waiting) for item in part]
        masked: T = whole[0]
        return masked

    def masked_text(self, text: str) -> str:
        """Return a text with each value replaced by `[secret NAME]`."""
        for name, value in self.values.items():
            for form in _forms(value):
                if form in text:
                    text = text.replace(form, f"[secret {name}]")
        return text

    def masked_end(self, text: str) -> str:
        """Return the tail of a text, cut anywhere, masked; masks part of a value at its beginning, too."""
        # The cut may have gone through a character, too.
        whole = text.lstrip(_CUT_CHAR)
        parts = [
            (len(form) - start, name)
            for name, value in self.values.items()
            for form in _forms(value)
            for start in range(len(form))
            if form[start] == whole[:1] and whole.startswith(form[start:])
        ]
        length, name = max(parts, default=(0, ""))
        return (f"[secret {name}]" if length else "") + self.masked_text(whole[length:])

    def _leaf(self, item: Any, waiting: list[list[Any] | dict[str, Any]]) -> Any:
        if isinstance(item, str):
            return self.masked_text(item)
        if isinstance(item, dict | list):
            waiting.append(item)
        return item


NO_SECRETS = CallSecrets()
"""Secrets of a call without any."""


def _forms(value: str) -> tuple[str, ...]:
    """Return the forms of a value in texts: plain, JSON-escaped, and percent-encoded for a URL or a form."""
    as_json = (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    return tuple(dict.fromkeys((value, *as_json, quote(value), quote(value, safe=""), quote_plus(value))))


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secrets of a server, with their values.

    Attributes:
        rules: Settings of each secret by name: which calls get it.
    """

    rules: Mapping[str, SecretSettings] = field(default_factory=dict)
    _values: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, rules: Mapping[str, SecretSettings]) -> Self:
        """Return secrets with their current values.

        Raises:
            UsageError: Some cannot be read; one line for each.
        """
        values: dict[str, str] = {}
        faults: list[str] = []
        for name, secret in rules.items():
            try:
                values[name] = read_secret(name, secret)
            except UsageError as error:
                faults.append(str(error))
        if faults:
            raise UsageError("\n".join(faults))
        return cls(rules, values)

    def of(self, tool: str, user: str) -> CallSecrets:
        """Return the secrets of a tool's call.

        Args:
            tool: Name of the tool.
            user: Name of the caller.
        """
        if not self.rules:
            return NO_SECRETS
        mine = [
            name
            for name, secret in self.rules.items()
            if tool in secret.tools and ("*" in secret.users or user in secret.users)
        ]
        # The longest first: one value may be a prefix of another.
        mine.sort(key=lambda name: -len(self._values[name]))
        return CallSecrets({name: self._values[name] for name in mine})

    def changed(self, other: "Secrets") -> tuple[str, ...]:
        """Return the names of secrets whose value or rule differs in another set of them."""
        names = dict.fromkeys((*self.rules, *other.rules))
        return tuple(
            name
            for name in names
            if (self.rules.get(name), self._values.get(name))
            != (other.rules.get(name), other._values.get(name))
        )
