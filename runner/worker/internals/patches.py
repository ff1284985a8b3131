"""Changes to FastMCP in a worker: contexts have `artifacts`, and unrecorded spans are not made.

A tool's context has `artifacts`, as the contract promises; plain FastMCP has none.
"""

import fastmcp
from fastmcp import Context
from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

from runner.author import artifacts

__all__ = ["give_contexts_artifacts", "make_spans_if_recorded"]


class _Spans:
    """Flag that the runner has changed the setting, not an author or an operator."""

    left_out = False


def make_spans_if_recorded() -> None:
    """Let FastMCP make spans only if an OpenTelemetry SDK records them; trace context is always passed on.

    To be called after code that may set up such an SDK: the import of a tool file, a lifespan.
    """
    is_recorded = not isinstance(get_tracer_provider(), ProxyTracerProvider)
    if is_recorded and _Spans.left_out:
        fastmcp.settings.telemetry_mode = "native"
        _Spans.left_out = False
    elif not is_recorded and fastmcp.settings.telemetry_mode == "native":
        fastmcp.settings.telemetry_mode = "propagation_only"
        _Spans.left_out = True


def give_contexts_artifacts() -> None:
    """Provide `ctx.artifacts.put_bytes(...)` to tools, unless FastMCP has an attribute of that name.

    Source: requirements S4-3, S4-63.
    """
    if not hasattr(Context, "artifacts"):
        Context.artifacts = artifacts  # type: ignore[attr-defined]
