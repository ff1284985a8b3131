"""The spans of a call in the page, where the operator has tracing on.

Source: `docs/widgets.md`; `docs/operating.md`.
"""

import re
from collections.abc import Callable

import pytest
from playground_support import Shown
from web_support import browsing, expect, faults

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]


def test_spans_of_a_call_lie_in_time_where_tracing_is_on(start: Callable[..., Shown]) -> None:
    # Nobody listens there, which costs calls nothing.
    traced = start(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    with browsing(traced) as opening:
        seen = opening()
        seen.tool("double")
        seen.write('{"number": 1}')
        seen.run()

        panel = seen.tab("Timing")

        names = panel.locator("tbody td:first-child")
        expect(names.nth(0)).to_have_text("this page")
        expect(names.nth(1)).to_have_text("tools/call double")
        expect(panel.get_by_role("cell", name="run the tool")).to_be_visible()
        expect(panel.locator("dd").first).to_have_text(re.compile(r"^[0-9a-f]{32}$"))
        assert faults(seen) == []
