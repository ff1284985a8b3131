"""What the text of a tool file tells: every fault at its line, nothing where there is none."""

import re
from pathlib import Path

import pytest
from specimens import FAULTLESS, FAULTY, expected

from runner.check.rules import RULES
from runner.check.text_rules import TextReport, check_text

ROOT = Path(__file__).parents[2]

# Only running the file shows these; `test_import.py` runs them.
SEEN_IN_THE_SANDBOX = {"print_by_library", "slow_computes", "threads_in_pool", "threads_started"}


def look(text: str, folder: Path = Path("/")) -> TextReport:
    return check_text(text, folder, identity="username")


def found(text: str, folder: Path = Path("/usr/share/tools")) -> list[tuple[int, str]]:
    return [(finding.line, finding.rule) for finding in look(text, folder).findings]


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
def test_a_fault_is_found_at_its_line_and_nothing_else_is(file: Path) -> None:
    """Source: S1-109, S1-114 and S2-31."""
    wanted = set() if file.stem in SEEN_IN_THE_SANDBOX else expected(file)

    assert len(expected(file)) == 1
    assert set(found(file.read_text(), file.parent)) == wanted


@pytest.mark.parametrize("file", FAULTLESS, ids=lambda file: file.stem)
def test_nothing_is_found_in_a_faultless_file(file: Path) -> None:
    assert found(file.read_text(), file.parent) == []


def test_there_are_enough_files_and_a_faulty_one_for_every_rule() -> None:
    assert len(FAULTY) >= 40
    assert len(FAULTLESS) >= 20
    assert {rule for file in FAULTY for _, rule in expected(file)} == set(RULES)


@pytest.mark.parametrize(
    "name", [file.stem for file in (ROOT / "sample_tools").glob("*.py") if file.stem != "naughty"]
)
def test_nothing_is_found_in_the_sample_tools(name: str) -> None:
    file = ROOT / "sample_tools" / f"{name}.py"

    assert found(file.read_text(), file.parent) == []


def test_a_write_in_a_helper_names_every_tool_that_lacks_a_home() -> None:
    """Source: S1-110."""
    text = (
        "from fastmcp import FastMCP\nmcp = FastMCP('t')\ndef store():\n    open('a', 'w').close()\n"
        '@mcp.tool\ndef one():\n    """One."""\n    store()\n'
        '@mcp.tool(name="second")\ndef two():\n    """Two."""\n    one()\n'
    )

    [finding] = look(text).findings

    assert finding.line == 4
    assert "'one', 'second'" in finding.message


def test_several_writes_of_one_tool_are_one_finding_that_names_their_lines() -> None:
    lines = ["Path('a').mkdir()", "Path('a/b').write_text(text)", "Path('a/c').touch()"]

    [finding] = check_text(
        tool(*lines, "return 1", parameters="text: str"), Path("/"), identity="username"
    ).findings

    assert (finding.line, finding.rule) == (9, "write-without-username")
    assert "lines 10, 11" in finding.message


@pytest.mark.parametrize(
    "line",
    [
        'open("/var/x", "w")', 'open(file="/var/x", mode="w")', 'Path("/var", "x").write_text(text)',
        '(Path("/tmp") / "x").write_text(text)', 'Path(f"/tmp/{username}-x/y").touch()',
        'Path("/tmp/%s.txt" % username).touch()', 'Path("/tmp/bob").joinpath("x").open("a")',
        'open(f"/tmp/{username}/../../etc/x", "w")', 'Path("x").rename("y"); open("/tmp", "w")',
    ],
)  # fmt: skip
def test_a_write_outside_the_home_is_found_however_it_is_written(line: str) -> None:
    """Source: S1-48, S1-108 and S1-111."""
    assert found(tool(line, "return 1")) == [(9, "write-outside-home")]


@pytest.mark.parametrize(
    "line",
    [
        'open(f"/tmp/{username}/x", "w")', 'open("/tmp/" + username + "/x", "w")', 'open("x", "w")',
        'Path("/tmp", username, "x").write_text(text)', 'Path("/tmp/%s/x" % username).touch()',
        'Path("/tmp").joinpath(username, "x").touch()', 'open(text, "w")', 'open("/dev/null", "w")',
        'Path(f"/tmp/{username}").mkdir(exist_ok=True)', 'Path.home().joinpath("x").touch()',
        'Path(f"/tmp/{username.partition(chr(64))[0]}").mkdir(exist_ok=True)',
    ],
)  # fmt: skip
def test_a_write_into_the_home_is_no_finding_however_it_is_written(line: str) -> None:
    assert found(tool(line, "return 1")) == []


@pytest.mark.parametrize(
    "key", ["Results", "RESULTS", "rseults", "reslts", "resultss", "restults", "re-sults"]
)
def test_a_slip_in_results_is_found(key: str) -> None:
    assert found(tool(f'return {{"{key}": 1}}')) == [(9, "misspelled-results")]


@pytest.mark.parametrize("key", ["resorts", "resets", "output", "resulting", "rows", "insults"])
def test_another_word_is_no_slip(key: str) -> None:
    assert found(tool(f'return {{"{key}": 1, "n": 2}}')) == []


@pytest.mark.parametrize(
    "key", ["artifact", "artefacts", "Artifacts", "metadata", "returned_filenames", "displays"]
)
def test_a_slip_in_another_key_of_an_envelope_is_found(key: str) -> None:
    assert found(tool(f'return {{"results": 1, "{key}": []}}')) == [(9, "misspelled-key")]


def test_keys_that_are_not_written_down_are_not_guessed() -> None:
    assert found(tool("base = {'results': 1}", "return {**base, 'result': 2, 'meta_data': {}}")) == []


def test_a_comment_waives_its_own_rule_on_its_own_line_only() -> None:
    waived = tool("print(1)  # runner: ignore[print-to-stdout]", "print(2)", "return 1")
    other = tool("print(1)  # runner: ignore[silent-loop]", "return 1")

    assert found(waived) == [(10, "print-to-stdout")]
    assert found(other) == [(9, "print-to-stdout")]


def test_what_refers_to_itself_without_end_is_read_all_the_same() -> None:
    lines = [
        "path = text",
        *["path = path.replace('a', path) / path"] * 30,
        "path.write_text(path)",
        "return 1",
    ]

    assert found(tool(*lines)) == []


def test_the_network_programs_and_variables_a_tool_needs_are_named_once_with_their_line() -> None:
    text = tool("import os, httpx, subprocess", *["httpx.get(text)"] * 2, "subprocess.run([text])",
                "return os.environ['API_KEY'], os.getenv('OTHER'), os.environ['HOME']")  # fmt: skip

    needs = [(need.kind, need.what, need.line) for need in look(text).needs]

    assert needs == [
        ("network", "httpx.get", 10),
        ("programs", "subprocess.run", 12),
        ("environment", "API_KEY", 13),
        ("environment", "OTHER", 13),
    ]


def test_every_rule_is_documented_with_its_severity() -> None:
    document = (ROOT / "docs" / "check.md").read_text()
    documented = dict(re.findall(r"(?m)^### `([\w-]+)` \((must|should)\)$", document))

    assert documented == {name: rule.severity.value for name, rule in RULES.items()}


@pytest.mark.parametrize(
    "lines",
    [
        ["rows = open(text)", "rows = enumerate(rows)", "rows = enumerate(rows)", "return list(rows)"],
        ["found = {'results': 1}", "found = found if text else found", "return found"],
        ["return act(text, username)"],
    ],
)
def test_names_made_of_themselves_end_the_search(lines: list[str]) -> None:
    assert found(tool(*lines)) == []


@pytest.mark.parametrize(
    ("mode", "rules"),
    [
        ('"rb" if text else "r"', []),
        ('"a" if text else "r"', ["write-without-username"]),
        ("text", []),
        ('mode="r+b"', ["write-without-username"]),
    ],
)
def test_the_mode_decides_whether_open_writes(mode: str, rules: list[str]) -> None:
    text = tool(f'open("x", {mode}).close()', "return 1", parameters="text: str")

    assert [rule for _, rule in found(text)] == rules


@pytest.mark.parametrize(
    "registration",
    [
        "mcp.tool(act)", "mcp.tool()(act)", 'mcp.tool(name="x")(act)', "mcp.add_tool(act)",
        "tool = mcp.tool\ntool(act)", "mcp.add_tool(Tool.from_function(act))",
        "for f in [act]: mcp.tool(f)", "other = mcp\nother.tool(act)",
    ],
)  # fmt: skip
def test_a_tool_is_known_however_it_is_registered(registration: str) -> None:
    head = "import fastmcp\nfrom fastmcp.tools import Tool\nmcp = fastmcp.FastMCP('t')\ndef act(): ...\n"
    text = f"{head}{registration}\n"

    assert found(text) == [(4, "missing-docstring")]


HELPERS = """
import asyncio, httpx, io, sys, logging
import pandas as pd
def save(path, text):
    with open(path, "w") as file:
        file.write(text)
def dump(frame, target):
    frame.to_csv(target)
async def fetch(client: httpx.AsyncClient, address):
    return await client.get(address)
class Job:
    def __init__(self, ctx: Context):
        self.ctx = ctx
    async def run(self):
        while True:
            await asyncio.sleep(1)
            await self.ctx.info("alive")
NAMES = ("hostname", "timezone")
"""


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ('save("/var/x", text)', ["write-outside-home"]),
        ('save(f"/tmp/{username}/x", text)', []),
        ('save("/tmp/{username}/x", text)', ["write-outside-home"]),
        ('save("/tmp/%(u)s/x" % {"u": username}, text)', []),
        ("dump(pd.DataFrame(), io.StringIO())", []),
        ("await asyncio.gather(*[fetch(None, address) for address in text])", []),
        ("[await fetch(None, address) for address in text]", ["silent-loop"]),
        ("await Job(ctx).run()", []),
        ("[Path('/etc', name).read_text() for name in NAMES]", []),
        ("[Path('/etc', name).read_text() for name in text]", ["silent-loop"]),
        ("logging.basicConfig(stream=sys.stdout)", ["print-to-stdout"]),
        ("logging.basicConfig(stream=sys.stderr)", []),
    ],
)
def test_what_is_handed_to_a_helper_counts_where_it_is_used(line: str, rules: list[str]) -> None:
    head, body = tool(line, "return 1", parameters="text: str, username: str, ctx: Context").split(
        "@mcp.tool"
    )

    assert [rule for _, rule in found(f"{head}{HELPERS}@mcp.tool{body}")] == rules
