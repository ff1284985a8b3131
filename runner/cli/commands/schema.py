"""`runner schema`: the contract of results as JSON Schema."""

from runner.contract.models import contract_schema
from runner.formats.terminal_text import json_text

__all__ = ["schema"]


def schema() -> int:
    """Print the schema."""
    print(json_text(contract_schema(), indent=2))  # noqa: T201
    return 0
