"""How often one user may call one tool: in any minute, by the identity that the host found."""

from pathlib import Path

import pytest
from support import call, details, error_code, open_toolset

from runner.errors import CallError, Code
from runner.toolset.rates import Rates


def admitted(rates: Rates, *moments: float, most: int | None = 2) -> list[bool]:
    """Return which calls at these moments were admitted."""
    found = []
    for now in moments:
        try:
            rates.admit_tool("alice", "show", most=most, now=now)
        except CallError:
            found.append(False)
        else:
            found.append(True)
    return found


def test_as_many_calls_as_the_limit_says_go_through_in_any_minute() -> None:
    moments = (0, 30, 59.9, 60.0, 61, 90, 91)

    assert admitted(Rates(), *moments) == [True, True, False, True, False, True, False]


def test_a_refused_call_does_not_count() -> None:
    moments = (0, 1, *range(2, 60), 60.0, 61.0)

    assert admitted(Rates(), *moments)[-2:] == [True, True]


def test_a_tool_without_a_limit_is_never_refused() -> None:
    assert all(admitted(Rates(), *[0.0] * 500, most=None))


def test_users_and_tools_have_limits_of_their_own() -> None:
    rates = Rates()
    rates.admit_tool("alice", "show", most=1, now=0)

    rates.admit_tool("bob", "show", most=1, now=0)
    rates.admit_tool("alice", "other", most=1, now=0)

    with pytest.raises(CallError):
        rates.admit_tool("alice", "show", most=1, now=0)


def test_the_error_says_when_to_come_back() -> None:
    rates = Rates()
    rates.admit_tool("alice", "show", most=1, now=100)

    with pytest.raises(CallError) as raised:
        rates.admit_tool("alice", "show", most=1, now=117.2)

    assert raised.value.code is Code.E_BUSY
    assert raised.value.retryable
    assert raised.value.message == "show may be called 1 times a minute; try again in 43 seconds"
    assert raised.value.details == {"retry_after_seconds": 43, "calls_per_minute": 1}


@pytest.mark.kernel
@pytest.mark.anyio
async def test_a_call_above_the_limit_of_its_tool_is_busy_and_other_users_are_not(tmp_path: Path) -> None:
    """Source: S3-141."""
    tmp_path.chmod(0o700)
    file = tmp_path / "two.py"
    file.write_text(
        "from fastmcp import FastMCP\nmcp = FastMCP('t')\n"
        "@mcp.tool\ndef few() -> int:\n    return 1\n@mcp.tool\ndef many() -> int:\n    return 2\n"
    )

    async with open_toolset(file, tmp_path, tools={"few": {"calls_per_minute": 2}}) as toolset:
        codes = [error_code(await call(toolset, "t-alice-rate", "few")) for _ in range(3)]
        refused = await call(toolset, "t-alice-rate", "few")
        other_tool = error_code(await call(toolset, "t-alice-rate", "many"))
        other_user = error_code(await call(toolset, "t-bob-rate", "few"))

    assert codes == [None, None, "E_BUSY"]
    assert 0 < details(refused)["retry_after_seconds"] <= 60
    assert (other_tool, other_user) == (None, None)
