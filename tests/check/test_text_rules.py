"""Static rules for a tool file: each fault at its line, no finding without a fault."""

import re
from pathlib import Path

import pytest
from specimens import FAULTLESS, FAULTY, SANDBOXED, SLOW, expected

from runner.check.source import RULES, SourceFile
from runner.check.text_rules import check_text, needs

ROOT = Path(__file__).parents[2]


def found(text: str) -> list[tuple[int, str]]:
    source = SourceFile(text)
    return [(finding.line, finding.rule) for finding in source.without_waived(check_text(source))]


def tool(*lines: str, parameters: str = "text: str, username: str") -> str:
    """Return a tool file whose one tool has these lines; the first of them is line 9."""
    head = ["from pathlib import Path", "from fastmcp import Context, FastMCP", "", "mcp = FastMCP('t')", ""]
    body = [
        "@mcp.tool",
        f"async def act({parameters}) -> object:",
        '    """Act."""',
        *(f"    {x}" for x in lines),
    ]
    return "\n".join([*head, *body]) + "\n"


@pytest.mark.parametrize("file", FAULTY, ids=lambda file: file.stem)
def test_fault_found_at_its_line_and_nothing_else(file: Path) -> None:
    """Source: S1-114 and S2-31."""
    assert len(expected(file)) == 1
    assert set(found(file.read_text())) == expected(file)


@pytest.mark.parametrize("file", FAULTLESS, ids=lambda file: file.stem)
def test_faultless_file_has_no_findings(file: Path) -> None:
    assert found(file.read_text()) == []


def test_rules_all_have_a_faulty_line() -> None:
    assert {rule for file in (*FAULTY, SANDBOXED, SLOW) for _, rule in expected(file)} == set(RULES)


@pytest.mark.parametrize(
    "name", [file.stem for file in (ROOT / "sample_tools").glob("*.py") if file.stem != "naughty"]
)
def test_sample_tools_have_no_findings(name: str) -> None:
    file = ROOT / "sample_tools" / f"{name}.py"

    assert found(file.read_text()) == []


def test_write_in_helper_names_every_tool_without_home() -> None:
    """Source: S1-110."""
    text = (
        "from fastmcp import FastMCP\nmcp = FastMCP('t')\ndef store():\n    open('a', 'w').close()\n"
        '@mcp.tool\ndef one():\n    """One."""\n    store()\n'
        '@mcp.tool(name="second")\ndef two():\n    """Two."""\n    one()\n'
    )

    [finding] = check_text(SourceFile(text))

    assert finding.line == 4
    assert "'one', 'second'" in finding.message


@pytest.mark.parametrize(
    "key", ["Results", "RESULTS", "rseults", "reslts", "resultss", "restults", "re-sults"]
)
def test_misspelling_in_results_is_found(key: str) -> None:
    assert found(tool(f'return {{"{key}": 1}}')) == [(9, "misspelled-results")]


@pytest.mark.parametrize("key", ["resorts", "resets", "output", "resulting", "rows", "insults"])
def test_other_word_is_not_a_misspelling(key: str) -> None:
    assert found(tool(f'return {{"{key}": 1, "n": 2}}')) == []


@pytest.mark.parametrize(
    "key", ["artifact", "artefacts", "Artifacts", "metadata", "returned_filenames", "displays"]
)
def test_misspelling_in_other_envelope_key_is_found(key: str) -> None:
    assert found(tool(f'return {{"results": 1, "{key}": []}}')) == [(9, "misspelled-key")]


def test_unwritten_keys_are_not_guessed() -> None:
    assert found(tool("base = {'results': 1}", "return {**base, 'result': 2, 'meta_data': {}}")) == []


def test_comment_waives_its_own_rule_on_its_line_only() -> None:
    waived = tool("print(1)  # runner: ignore[print-to-stdout]", "print(2)", "return 1")
    other = tool("print(1)  # runner: ignore[silent-loop]", "return 1")

    assert found(waived) == [(10, "print-to-stdout")]
    assert found(other) == [(9, "print-to-stdout")]


def test_needs_network_programs_variables_listed_once_with_line() -> None:
    text = tool("import os, httpx, subprocess", *["httpx.get(text)"] * 2, "subprocess.run([text])",
                "return os.environ['API_KEY'], os.getenv('OTHER'), os.environ['HOME']")  # fmt: skip

    assert [tuple(need.values()) for need in needs(SourceFile(text))] == [
        ("network", "httpx.get", 10),
        ("programs", "subprocess.run", 12),
        ("environment", "API_KEY", 13),
        ("environment", "OTHER", 13),
    ]


def test_rules_all_documented_with_severity() -> None:
    document = (ROOT / "docs" / "guide.md").read_text()
    documented = dict(re.findall(r"(?m)^### `([\w-]+)` \((must|should)\)$", document))

    assert documented == RULES


@pytest.mark.parametrize(
    ("mode", "rules"),
    [
        ('"rb" if text else "r"', []),
        ('"a" if text else "r"', ["write-without-username"]),
        ("text", []),
        ('mode="r+b"', ["write-without-username"]),
    ],
)
def test_mode_decides_whether_open_writes(mode: str, rules: list[str]) -> None:
    text = tool(f'open("x", {mode}).close()', "return 1", parameters="text: str")

    assert [rule for _, rule in found(text)] == rules


@pytest.mark.parametrize(
    "registration",
    [
        "mcp.tool(act)", "mcp.tool()(act)", 'mcp.tool(name="x")(act)', "mcp.add_tool(act)",
        "mcp.add_tool(Tool.from_function(act))", "fastmcp.FastMCP('t').tool(act)",
    ],
)  # fmt: skip
def test_tool_recognised_however_registered(registration: str) -> None:
    head = "import fastmcp\nfrom fastmcp.tools import Tool\nmcp = fastmcp.FastMCP('t')\ndef act(): print(1)\n"

    assert found(f"{head}{registration}\n") == [(4, "print-to-stdout")]


HELPERS = """
import asyncio, httpx, io, sys, logging
import pandas as pd
def save(path, text):
    with open(path, "w") as file:
        file.write(text)
class Job:
    def __init__(self, ctx: Context):
        self.ctx = ctx
    async def run(self):
        while True:
            await asyncio.sleep(1)
            await self.ctx.info("alive")
"""


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ('save("x", text)', ["write-without-username"]),
        ("pd.DataFrame().to_csv(io.StringIO())", []),
        ("pd.DataFrame().to_csv('x.csv')", ["write-without-username"]),
        ("[httpx.get(address) for address in text]", ["silent-loop"]),
        ("[httpx.get(address) for address in text] and logging.info('done')", ["silent-loop"]),
        ("await Job(ctx).run()", []),
        ("logging.basicConfig(stream=sys.stdout)", ["print-to-stdout"]),
        ("logging.basicConfig(stream=sys.stderr)", []),
    ],
)
def test_fault_in_called_function_is_found(line: str, rules: list[str]) -> None:
    head, body = tool(line, "return 1", parameters="text: str, ctx: Context").split("@mcp.tool")

    assert [rule for _, rule in found(f"{head}{HELPERS}@mcp.tool{body}")] == rules
