"""The output guard: for any result of a tool, a model reads little text and no binary content.

    guarded = await guard(result, Keeper(config=config, store=store, scope=scope, tool="download"))

`guarded.value` is `result` itself if nothing had to be removed. Removed content is stored and replaced by
`{artifact, summary, ...}`. The layers, in their order:

1. `transformer`: the operator's own function; its value is final except for the last two layers.
2. `fields`: fields that are known to hold files.
3. `typed`: content blocks that declare their bytes.
4. `detect`: bytes of a known format in any usual writing: base64, digits, dumps, numbers, literals.
5. `oversize`: long strings, structures that are too large, and last the whole, if it is still too long.

Invariants for every input: the text of the value has at most `max_observation_chars` characters; it is JSON
that encodes to UTF-8; with detection on, it contains no run of base64 of `min_size_for_detection` or more
that decodes to a known binary. Detection also examines the value of a transformer. Without a store, or if the
store refuses, content is cut or left out, with an entry in `guarded.warnings`; the guard itself never fails.

A structure with too many items, or nested too deeply, is stored unparsed and referenced as a whole.

Source: document 004, section 4.1; contradiction C24; rules X1 to X6 of the conformance cases; requirements
S4-2 and S4-41 to S4-46.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from runner.formats.json_walks import least_chars
from runner.output_guard.config import MAX_ELEMENTS
from runner.output_guard.detect import Detector, scan
from runner.output_guard.fields import extract_fields
from runner.output_guard.json_view import Unruly, text_of, view
from runner.output_guard.oversize import clamped_by, fit, inline, put_away
from runner.output_guard.storing import Keeper, LayerRun, TooMany, drive
from runner.output_guard.transformer import Transformer, transformed
from runner.output_guard.typed import extract_blocks
from runner.store.protocol import Record
from sandbox.call_value import call_value

__all__ = ["Guarded", "guard"]

_LONG = 64 * 1024
# The store's default limit for one call; a result with more files is stored in larger parts.
_MOST_ARTIFACTS = 100


@call_value
class Guarded:
    """A guarded result for a model.

    Attributes:
        value: The result without removed content.
        stored: Records of stored content, in the order in which it was found.
        warnings: Failures, for the log.
        events: For user interfaces: `observation_clamped`.
        transformed: Whether the operator's function made it.
    """

    value: Any
    stored: tuple[Record, ...] = ()
    warnings: tuple[str, ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    transformed: bool = False


async def guard(
    result: Any, keeper: Keeper, *, transformer: Transformer | None = None, share: float = 1.0
) -> Guarded:
    """Return `result` with binary and oversized content removed and stored.

    Args:
        result: The tool's return value, of any shape; it is never changed.
        keeper: Stores removed content.
        transformer: The operator's own function, if there is one.
        share: Fraction of `max_observation_chars` that it may take.
    """
    settings = keeper.config.for_call(keeper.tool, keeper.server)
    limit = max(int(settings.max_observation_chars * share), 1)
    event: dict[str, Any] | None = None
    final = None
    try:
        look = partial(view, result, max_elements=MAX_ELEMENTS)
        # Visits each value: for a large result that would block the event loop too long.
        seen = await asyncio.to_thread(look) if least_chars(result, _LONG) > _LONG else look()
    except Unruly:
        value, event = await clamped_by(keeper, result, limit, chars=sys.maxsize, unruly=True)
    else:
        if transformer is not None:
            final = await transformed(transformer, seen, keeper)
        seen = seen if final is None else final
        value, chars = seen.value, seen.chars
        layers: list[Callable[[Any], LayerRun[Any]]] = []
        if final is None:
            template, warnings = settings.default_summary_template, keeper.warnings
            fields = settings.fields_of(keeper.tool, keeper.server) if settings.tool_fields else ()
            if fields:
                layers.append(lambda value: extract_fields(value, fields, settings, warnings))
            if seen.typed:
                layers.append(lambda value: extract_blocks(value, template, warnings))
        if seen.raw or max(seen.longest, seen.listed) >= settings.binary_detection.min_chars:
            detector = Detector.of(settings)
            layers.append(lambda value: scan(value, detector))
        for layer in layers:
            value = await _taken_out(layer, value, keeper, limit=limit, chars=chars)
        keeps_whole = final is not None or not settings.auto_artifact_large_content
        if not keeps_whole and seen.longest > settings.max_inline_size:
            with contextlib.suppress(TooMany):
                run = inline(value, settings.max_inline_size)
                value = await drive(run, keeper, chars=chars, most=_MOST_ARTIFACTS)
        # Most values are so short that their text need not be encoded.
        may_be_long = seen.raw or seen.most_chars > limit
        if value is not seen.value or (may_be_long and (chars > limit or len(text_of(seen.value)) > limit)):
            if not keeps_whole:
                value = await drive(fit(value, limit), keeper, chars=chars)
            value, event = await clamped_by(keeper, value, limit, chars=chars)
    return Guarded(
        value=value,
        stored=tuple(keeper.stored),
        warnings=tuple(keeper.warnings),
        events=(event,) if event else (),
        transformed=final is not None,
    )


async def _taken_out(
    layer: Callable[[Any], LayerRun[Any]], value: Any, keeper: Keeper, *, limit: int, chars: int
) -> Any:
    """Run a layer. If it would remove too many parts one by one, larger parts are stored first."""
    try:
        return await drive(layer(value), keeper, chars=chars, most=_MOST_ARTIFACTS)
    except TooMany:
        value = await drive(fit(value, limit), keeper, chars=chars)
    try:
        return await drive(layer(value), keeper, chars=chars, most=_MOST_ARTIFACTS)
    except TooMany:
        return await drive(put_away(value), keeper, chars=chars)
