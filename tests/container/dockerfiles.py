"""A Dockerfile, read into its instructions."""

import json
import shlex
from dataclasses import dataclass

__all__ = ["Dockerfile", "Instruction", "parse"]


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile: its word in capitals, and the rest as one line."""

    word: str
    rest: str

    @property
    def exec_form(self) -> list[str] | None:
        """The arguments of an exec form, or None where the rest is a shell form."""
        text = self.rest
        if self.word == "HEALTHCHECK":
            text = text.split("CMD", 1)[-1].strip()
        try:
            arguments: list[str] = json.loads(text)
        except json.JSONDecodeError:
            return None
        return arguments

    @property
    def command(self) -> list[str]:
        """The arguments of what is in exec form."""
        arguments = self.exec_form
        assert arguments is not None, f"{self.word} is not in exec form"
        return arguments


@dataclass(frozen=True)
class Dockerfile:
    """A Dockerfile as the list of its instructions."""

    instructions: tuple[Instruction, ...]

    def all(self, word: str) -> list[Instruction]:
        return [one for one in self.instructions if one.word == word]

    def last(self, word: str) -> Instruction:
        return self.all(word)[-1]

    def environment(self) -> dict[str, str]:
        """The variables that ENV sets, with ARG defaults put in."""
        arguments = dict(one.rest.split("=", 1) for one in self.all("ARG"))
        pairs = [pair.split("=", 1) for one in self.all("ENV") for pair in shlex.split(one.rest)]
        return {name: arguments.get(value.removeprefix("$"), value) for name, value in pairs}


def parse(text: str) -> Dockerfile:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    parts = [line.split(None, 1) for line in joined.splitlines()]
    return Dockerfile(tuple(Instruction(word.upper(), " ".join(rest.split())) for word, rest in parts))
