"""`runner schema`: the contract of results as JSON Schema."""

from runner.cli.exits import end_with
from runner.contract.models import contract_schema
from runner.formats.terminal_text import json_text

__all__ = ["schema"]


def schema() -> None:
    """Print the schema."""

    def act() -> int:
        print(json_text(contract_schema(), indent=2))  # noqa: T201
        return 0

    end_with(act)
