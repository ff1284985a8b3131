"""Application of the output guard: the last step of a call before its result is sent to an MCP client.

All text of a result for a model passes `runner.output_guard`: too long or binary content is kept in the
caller's store as an observation, and replaced by a reference. Bytes that the client requested, and pictures
and sounds that `runner.steps.client_message` left in, are not text and stay. If a tool declares a schema of
its structured content, the guarded content still satisfies it.

Source: document 004, sections 4.1 and 4.2; requirements S4-65, S4-74, S4-80, S4-88 to S4-91; architecture,
step 10 of a call, and its decision "Results against schemas".
"""

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.contract.jsonable import list_of, mapping_of, without
from runner.contract.models import FILE_LISTS
from runner.errors import UsageError
from runner.files.my_files import FileChange, MyFiles
from runner.formats.json_walks import least_chars
from runner.output_guard.config import GuardConfig, from_mapping
from runner.output_guard.message import guard_message, guard_prompt
from runner.output_guard.operator_code import load_function
from runner.output_guard.pipeline import Guarded, guard
from runner.output_guard.schema_fit import fits, left_out
from runner.output_guard.storing import Keeper
from runner.output_guard.transformer import Transformer
from runner.settings.execution import ServiceSettings
from runner.store.protocol import Record, Scope
from sandbox.call_value import call_value

__all__ = ["LEFT_OUT_META", "GuardedCall", "OutputGuard", "config_of", "unfit"]

log = logging.getLogger(__name__)

LEFT_OUT_META = "toolcell/left_out"
"""Key in `_meta` for the lists and objects that the structured content has only a part of."""

# A contract value is sent as text and as structured content, and the text escapes its quotes.
_SHARE_OF_RESULTS = 0.4
# Longer values are processed in a thread.
_LONG = 64 * 1024
_MOST_BESIDE = 20
_MOST_COUNTS = 20


def config_of(settings: ServiceSettings) -> GuardConfig:
    """Return the guard's settings, the section `output_guard`.

    Raises:
        UsageError: Something in the section is wrong; the message names the file and each setting.
    """
    config = from_mapping(settings.output_guard, place=settings.config_source.place)
    return config.with_reading_tools() if settings.has_extras else config


@call_value
class GuardedCall:
    """The call whose result is guarded.

    Attributes:
        tool: Name of the tool.
        files: My Files of the user, which keep removed content.
        server: Name of the remote server of the tool, if any.
        schema: The schema that the structured content has to satisfy, if the tool declares one.
        is_own: Whether the message is the tool's own, not a contract value.
        is_contract: Whether the message stands for a contract value whose `results` were guarded before.
        is_for_page: Whether the result reaches a widget's page, and no model.
    """

    tool: str
    files: MyFiles
    server: str | None = None
    schema: Mapping[str, Any] | None = None
    is_own: bool = False
    is_contract: bool = False
    is_for_page: bool = False

    @property
    def is_made_by_tool(self) -> bool:
        """True if the client's message is made from the tool's own message, not from the contract value."""
        return self.is_own or self.schema is not None

    @property
    def scope(self) -> Scope:
        """Return the scope of removed content: the user, and the session if files do not persist."""
        files = self.files
        return Scope(user_id=files.user, trace_id=files.trace) if files.library.persist else files.scope


@dataclass(frozen=True, slots=True)
class OutputGuard:
    """Guard of the results of one server.

    Attributes:
        config: The settings.
        transformers: The operator's own functions, by their names in the settings.
    """

    config: GuardConfig
    transformers: Mapping[str, Transformer] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: ServiceSettings) -> "OutputGuard":
        """Return the guard of the settings, with the operator's code imported.

        Raises:
            UsageError: The section `output_guard` is wrong, or a function that it names cannot be loaded.
        """
        config, file = config_of(settings), settings.config_file
        folder = file.parent if file else None
        functions: dict[str, Transformer] = {}
        for name, place in config.transformers().items():
            try:
                functions[name] = load_function(
                    name, folder=folder, arguments=3, named_config=settings.config_source.is_named
                )
            except UsageError as error:
                key = ("output_guard", *place)
                where = settings.config_source.place(*key) + ".".join(map(str, key))
                raise UsageError(f"{where}: {error}") from error
        return cls(config, functions)

    async def results(self, value: Any, call: GuardedCall) -> Any:
        """Return the `results` of a contract value guarded, so that text and structured content agree."""
        # For a message made by the tool, it runs in `message` instead.
        transformer = None if call.is_made_by_tool else self._transformer(call)
        return await self._guarded(value, call, transformer)

    async def facts(self, meta_data: Mapping[str, Any], call: GuardedCall) -> dict[str, Any]:
        """Return the `meta_data` of a contract value guarded; the operator's function does not get it."""
        made = await self._guarded(meta_data, call, None)
        return dict(made) if isinstance(made, Mapping) else {"summary": made}

    async def _guarded(self, value: Any, call: GuardedCall, transformer: Transformer | None) -> Any:
        if self._passes(call):
            return value
        guarded = await guard(value, self._keeper(call), share=_SHARE_OF_RESULTS, transformer=transformer)
        self._tell(guarded, call)
        return guarded.value

    async def message(
        self, message: Mapping[str, Any], call: GuardedCall, *, media_stay: bool
    ) -> dict[str, Any]:
        """Return the result of a `tools/call` with its text for a model guarded.

        Args:
            message: The result as on the wire; it is not changed.
            call: Its call.
            media_stay: Keep the blocks whose bytes `runner.steps.client_message` decided to send.
        """
        if self._passes(call):
            return dict(message)
        aside = _Aside.of(message) if media_stay else _Aside(message=message)
        # The operator's own function gets other contract values earlier, in `results`, and no answers of our
        # own tools.
        transforms = call.is_made_by_tool or (call.server is not None and not call.is_contract)
        transformer = self._transformer(call) if transforms else None
        guarded = await guard_message(aside.message, self._keeper(call), transformer=transformer)
        self._tell(guarded, call)
        made: dict[str, Any] = guarded.value
        was = aside.message.get("structuredContent")
        if call.schema is not None and was is not None and made.get("structuredContent") is not was:
            # Content that the operator's function removed must not be restored from the original.
            held = made.get("structuredContent") if guarded.transformed else was
            made = await self._fitted(made, held, call, call.schema, is_satisfied=not guarded.transformed)
        return aside.back_in(made) if aside.blocks or aside.carried else made

    async def prompt(self, result: Mapping[str, Any], call: GuardedCall) -> dict[str, Any]:
        """Return the result of a `prompts/get` with its text for a model guarded."""
        guarded = await guard_prompt(result, self._keeper(call))
        self._tell(guarded, call)
        made: dict[str, Any] = guarded.value
        return made

    async def _fitted(
        self,
        made: dict[str, Any],
        was: Any,
        call: GuardedCall,
        schema: Mapping[str, Any],
        *,
        is_satisfied: bool,
    ) -> dict[str, Any]:
        """Return a guarded message whose structured content satisfies its schema, or an error message.

        A message without structured content would make clients throw.
        """
        guarded = made.get("structuredContent")
        rest = {key: item for key, item in made.items() if key != "structuredContent"}
        tried = fits(was, guarded, schema, is_satisfied=is_satisfied)
        is_long = least_chars(was, _LONG) > _LONG
        while True:
            fit = await asyncio.to_thread(next, tried, None) if is_long else next(tried, None)
            if fit is None:
                return unfit(rest, call.tool)
            shown, content = json.dumps(fit), [*rest["content"]]
            beside = shown + json.dumps(content)
            # The shorter form has no room for some references.
            content += [
                {"type": "text", "text": json.dumps(each, ensure_ascii=False)}
                for each in _references(guarded)
                if each["artifact"]["id"] not in beside
            ][:_MOST_BESIDE]
            again = rest | {"content": content, "structuredContent": fit}
            if missing := left_out(was, fit, most=_MOST_COUNTS):
                # The schema allows no mark in the content itself.
                again["_meta"] = {**(rest.get("_meta") or {}), LEFT_OUT_META: missing}
            checked = await guard_message(again, self._keeper(call, stores=False))
            # It contains parts of the original value, and has to be guarded again.
            if checked.value == again:
                return again

    def _keeper(self, call: GuardedCall, *, stores: bool = True) -> Keeper:
        store = call.files.library.store if stores else None
        return Keeper(config=self.config, store=store, scope=call.scope, tool=call.tool, server=call.server)

    def _passes(self, call: GuardedCall) -> bool:
        """Return whether a result is not guarded: one for a page, without a function of the operator."""
        return call.is_for_page and self._transformer(call) is None

    def _transformer(self, call: GuardedCall) -> Transformer | None:
        if not self.transformers:
            return None
        named = self.config.for_call(call.tool, call.server).output_transformer
        return None if named is None else self.transformers.get(named)

    def _tell(self, guarded: Guarded, call: GuardedCall) -> None:
        for warning in guarded.warnings:
            log.warning("output guard warning", extra={"tool": call.tool, "problem": warning})
        if guarded.stored:
            self.publish_stored(guarded.stored, call)
        for event in guarded.events:
            log.info("observation clamped", extra={"tool": call.tool, "method": event.get("method")})

    def publish_stored(self, records: Sequence[Record], call: GuardedCall) -> None:
        """Publish records stored during a call as changes of its user's files."""
        files = call.files
        session = None if files.library.persist else files.session or None
        for record in records:
            files.library.changed(FileChange(user=files.user, session=session, record=record))


def unfit(message: Mapping[str, Any], tool: str) -> dict[str, Any]:
    """Return a message without structured content as an error, which clients do not validate."""
    text = (
        f"The tool {tool} has done its work, but its result is not for a model as it is, and nothing shorter "
        "satisfies its output schema. What was taken out is named above. Ask the tool for less at a time; "
        "for the tool's author: allow shorter values in the output schema, or declare none."
    )
    return {**message, "content": [*message["content"], {"type": "text", "text": text}], "isError": True}


def _references(value: Any) -> Iterator[dict[str, Any]]:
    artifact = value.get("artifact") if isinstance(value, dict) and "summary" in value else None
    if isinstance(artifact, dict) and isinstance(artifact.get("id"), str):
        yield value
        return
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _references(item)


@call_value
class _Aside:
    """A message without the bytes that stay in it, and those bytes.

    Attributes:
        message: The remaining message.
        blocks: Content blocks, by their index.
        carried: Base64 of files in the structured content, by list and index.
    """

    message: Mapping[str, Any]
    blocks: Mapping[int, Any] = field(default_factory=dict)
    carried: Mapping[tuple[str, int], str] = field(default_factory=dict)

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> "_Aside":
        content = message.get("content", [])
        blocks = {index: block for index, block in enumerate(content) if _is_media(block)}
        carried: dict[tuple[str, int], str] = {}
        structured = message.get("structuredContent")
        if isinstance(structured, dict):
            structured = {**structured}
            for key in FILE_LISTS:
                entries = list_of(structured.get(key))
                held = {
                    (key, index): entry["b64"]
                    for index, entry in enumerate(entries)
                    if isinstance(mapping_of(entry).get("b64"), str)
                }
                if held:
                    carried |= held
                    structured[key] = [
                        without(entry, "b64") if (key, index) in held else entry
                        for index, entry in enumerate(entries)
                    ]
        if not blocks and not carried:
            return cls(message=message)
        left = {**message, "content": [b for i, b in enumerate(content) if i not in blocks]}
        if structured is not None:
            left["structuredContent"] = structured
        return cls(message=left, blocks=blocks, carried=carried)

    def back_in(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a guarded message with the bytes in their places again."""
        if self.blocks:
            content = list(message.get("content", []))
            for index, block in sorted(self.blocks.items()):
                content.insert(index, block)
            message = {**message, "content": content}
        structured = message.get("structuredContent")
        if not self.carried or not isinstance(structured, dict):
            return message
        whole = {**structured}
        for (key, index), b64 in self.carried.items():
            entries = [*list_of(whole.get(key))]
            # The list itself may have been too long; then its files are sent as references.
            if index < len(entries) and isinstance(entries[index], dict):
                entries[index] = {**entries[index], "b64": b64}
                whole[key] = entries
        return {**message, "structuredContent": whole}


def _is_media(block: object) -> bool:
    fields = mapping_of(block)
    return fields.get("type") in ("image", "audio") or "blob" in mapping_of(fields.get("resource"))
