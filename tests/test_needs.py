"""What a test needs is read from its text, from that of its helpers, and from its fixtures."""

import pytest
from needs import LENGTHY, SLOW, TESTS, needs_of_fixtures, needs_of_module


@pytest.mark.parametrize(
    ("module", "needs"),
    [
        ("contract/test_normalise.py", set()),
        ("store/test_local.py", set()),
        ("store/test_full_disk.py", {"needs_root"}),
        ("store/test_s3.py", {"needs_s3"}),
        ("widgets/test_bridge_mcp.py", {"needs_browser", "needs_npm"}),
        # It says by itself which of its cases need a browser.
        ("conformance/test_cases.py", set()),
    ],
)
def test_a_module_needs_what_it_and_its_helpers_name(module: str, needs: set[str]) -> None:
    assert needs_of_module(TESTS / module) == needs


def test_a_test_needs_what_its_fixtures_name() -> None:
    assert needs_of_fixtures(TESTS / "store", frozenset({"rgw_bucket", "clock"})) == {"needs_s3"}
    assert needs_of_fixtures(TESTS / "store", frozenset({"juicefs_bucket"})) == {"needs_s3"}
    assert needs_of_fixtures(TESTS / "store", frozenset({"s3"})) == {"needs_s3"}
    assert "needs_browser" in needs_of_fixtures(TESTS / "playground", frozenset({"opens_hostile"}))
    assert needs_of_fixtures(TESTS / "store", frozenset({"clock", "tmp_path"})) == set()


def test_what_is_called_slow_or_lengthy_is_there() -> None:
    assert [name for name in SLOW if not (TESTS / name).is_dir()] == []
    assert [name for name in LENGTHY if not (TESTS / name).exists()] == []
