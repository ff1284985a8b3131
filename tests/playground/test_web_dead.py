"""A server behind `runner proxy` that cannot be reached: named where its tools are missed, with why.

Source: `docs/widgets.md`.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playground_support import Shown
from web_support import browsing, expect, faults

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

REMOTE = Path(__file__).with_name("web_remote.py")


def test_dead_proxied_server_is_named_and_others_work(start: Callable[..., Shown], tmp_path: Path) -> None:
    servers = {
        "alpha": {"command": sys.executable, "args": [str(REMOTE), "alpha"], "cwd": str(REMOTE.parent)},
        "dead": {"url": "http://127.0.0.1:9/mcp"},
    }
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    with browsing(start("proxy", tools=file)) as opened:
        seen = opened()

        tools = seen.page.get_by_role("complementary", name="Tools")
        expect(tools.get_by_role("alert")).to_contain_text("dead is down")
        expect(tools).not_to_contain_text("Loading")
        seen.tool("alpha_whoami")
        expect(seen.run()).to_contain_text("alpha")
        seen.go("session")
        behind = seen.page.get_by_role("region", name="Servers behind this proxy")
        expect(behind).to_contain_text("cannot be reached")
        assert faults(seen) == []
