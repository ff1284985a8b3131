"""The contract as a resource of the runner's own: `runner://contract/2.1`, a JSON Schema.

Source: `runner.contract.models`.
"""

import json

from runner.contract.models import CONTRACT_URI, contract_schema
from runner.server.extras import ExtraResource
from runner.steps.execution import Service
from runner.users.identity import User

__all__ = ["CONTRACT"]


async def _text(_service: Service, _user: User) -> str:
    return json.dumps(contract_schema(), indent=2)


CONTRACT = ExtraResource(
    uri=CONTRACT_URI,
    name="contract",
    description="What a tool of this server returns: JSON Schema of the result contract, version 2.1.",
    mime="application/schema+json",
    text=_text,
)
