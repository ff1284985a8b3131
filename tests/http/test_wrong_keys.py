"""Wrong tokens and keys are counted, slowed and told of; right ones beside them are not."""

import logging
import threading
from pathlib import Path

import pytest
from site_support import Served

from runner.http.wrong_keys import WrongOnes, of_address

WRONG = {"authorization": "Bearer hunter2-hunter2-hunter2"}


def test_each_further_one_waits_longer_up_to_a_bound_and_is_forgotten() -> None:
    wrong = WrongOnes()
    waits = [wrong.one_more("a", now=0) for _ in range(40)]

    assert waits[:5] == [0.0] * 5
    assert waits == sorted(waits)
    assert (waits[5], waits[-1]) == (0.1, 3.0)
    assert wrong.one_more("b", now=0) == 0
    assert wrong.one_more("a", now=601) == 0


def test_what_is_remembered_is_bounded() -> None:
    wrong = WrongOnes()
    for number in range(10_000):
        wrong.one_more(str(number), now=0)

    assert len(wrong._of) == 4096


def test_one_network_of_version_6_is_one_address() -> None:
    assert of_address("2001:db8::1") == of_address("2001:db8::ffff:1") != of_address("2001:db8:0:1::1")
    assert of_address("192.0.2.1") == "192.0.2.1"


@pytest.mark.parametrize("path", ["/mcp", "/api/files", "/api/files/download/art_1?token=hunter2.hunter2"])
def test_a_right_token_is_answered_while_wrong_ones_from_its_address_wait(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served.at(tmp_path)
    ended: list[str] = []
    statuses: list[int] = []

    with served.visitor() as client:

        def ask_wrong() -> None:
            for _ in range(12):
                answer = client.request("POST" if path == "/mcp" else "GET", path, headers=WRONG)
                statuses.append(answer.status_code)
            ended.append("wrong")

        asking = threading.Thread(target=ask_wrong)
        asking.start()
        while len(statuses) < 9:
            asking.join(0.01)
        right = {"authorization": "Bearer token-of-ann-token-of-ann"}
        statuses_of_right = [client.get("/api/files", headers=right).status_code for _ in range(5)]
        ended.append("right")
        asking.join()

    assert statuses_of_right == [200] * 5
    assert set(statuses) <= {401, 403}
    assert ended == ["right", "wrong"]
    told = [record for record in caplog.records if record.name == "runner.http.wrong_keys"]
    assert 1 <= len(told) <= 3
    assert told[0].levelno == logging.WARNING
    assert sum(vars(record)["count"] for record in told) >= 1
    assert not any("hunter2" in str(vars(record)) for record in caplog.records)
