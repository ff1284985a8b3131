import json
from pathlib import Path

import pytest

from sandbox.outcome import describe_status
from sandbox.policy import Limits, Policy

WHOLE = Policy(
    home=Path("/tmp/alice"),
    scratch=Path("/var/scratch"),
    read=(Path("/usr"), Path("/etc/ssl")),
    homes=(Path("/tmp"),),
    list_only=(Path("/srv/tools"),),
    environment={"LANG": "C.UTF-8"},
    limits=Limits(memory_bytes=1000),
    guard=False,
)


def test_a_policy_survives_the_way_to_the_forkserver() -> None:
    assert Policy.from_json(json.loads(json.dumps(WHOLE.to_json()))) == WHOLE


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(ValueError, match="absolute paths only, got 'tmp/alice'"):
        Policy(home=Path("tmp/alice"))


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="limit cpu_s must be positive, got 0"):
        Limits(cpu_s=0)


@pytest.mark.parametrize("broken", [{}, {**WHOLE.to_json(), "read": "/"}, {**WHOLE.to_json(), "limits": 3}])
def test_what_is_no_policy_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a policy"):
        Policy.from_json(broken)


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "exit status 0"), (3 << 8, "exit status 3"), (9, "signal SIGKILL"), (139, "signal SIGSEGV")],
)
def test_wait_status_is_described_in_words(status: int, words: str) -> None:
    assert describe_status(status) == words
