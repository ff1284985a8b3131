"""Declarations of secrets for tools: the source of each, and the tools and users that get it."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from runner.settings.lendable import OUR_VARIABLES, VARIABLE
from runner.settings.values import EachName, Names, PrivatePath, SettingsTable

__all__ = ["SecretName", "SecretSettings"]

# Variables that determine the code to run, or its folders; a secret must not set them.
_NOT_SECRETS = frozenset({"HOME", "LOGNAME", "PATH", "TMPDIR", "USER"})
_NOT_BEGINNINGS = ("LD_", "PYTHON", "XDG_")


def _variable(name: str) -> str:
    if not VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} is not a variable name; tools get a secret as a variable of its name")
    if name.startswith((OUR_VARIABLES, *_NOT_BEGINNINGS)) or name in _NOT_SECRETS:
        raise ValueError(f"{name} means something else to programs; choose another name for the secret")
    return name


SecretName = Annotated[str, AfterValidator(_variable)]


class SecretSettings(SettingsTable):
    """Source of one secret, and the tools and users that get it."""

    file: PrivatePath | None = Field(
        None,
        description="File with the value, mode 0600; a trailing line break is removed. A relative path "
        "starts from the configuration file's folder. No tool can read it.",
    )
    command: tuple[str, ...] = Field(
        (),
        description="Instead of `file`: a program with arguments, run unconfined as the runner's user. Its "
        "output is the value; it has 20 seconds.",
    )
    tools: EachName = Field(min_length=1, description="Names of the tools that get it.")
    users: Names = Field(
        ("*",), description="Names of the users whose calls get it; `*` is all, and an empty list nobody."
    )

    @property
    def report(self) -> str:
        """Return the finding on a secret for which `secret_fault` found no fault."""
        return "its program is there; a server runs it" if self.command else "can be read"

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.file is None) == (not self.command):
            raise ValueError("a secret is read from one of file and command; give one of them")
        return self
