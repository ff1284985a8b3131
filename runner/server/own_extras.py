"""Resources and a prompt of the runner: the contract and the available-files block.

Source: `runner.contract.models`; document 001, section 4; requirement S1-38; `docs/guide.md`.
"""

import json

from runner.contract.available_files import available_files, files_block
from runner.contract.models import CONTRACT_URI, contract_schema
from runner.files.file_events import FILES_URI
from runner.server.extras import ExtraPrompt, ExtraResource
from runner.steps.request import Service
from runner.users.identity import User

__all__ = ["AVAILABLE_FILES", "CONTRACT", "FILES"]

_NONE = "There are no files in the current session."


async def _contract(_service: Service, _user: User) -> str:
    return json.dumps(contract_schema(), indent=2)


async def _block(service: Service, user: User) -> str:
    return files_block(available_files(await service.files(user).all()))


async def _message(service: Service, user: User) -> str:
    # A message has to say something.
    return await _block(service, user) or _NONE


CONTRACT = ExtraResource(
    uri=CONTRACT_URI,
    name="contract",
    description="What a tool of this server returns: JSON Schema of the result contract, version 2.1.",
    mime="application/schema+json",
    text=_contract,
)

FILES = ExtraResource(
    uri=FILES_URI,
    name="files",
    description="The user's files, by the names that tools take in `filename` and `filenames`.",
    mime="text/plain",
    text=_block,
)

AVAILABLE_FILES = ExtraPrompt(
    name="available_files",
    description="Tells the model which files there are, by the names that tools take.",
    text=_message,
)
