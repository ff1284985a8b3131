import base64

import pytest
from cpu_time import cpu_s

from runner.steps.file_references import FileReferences

CONTENT = base64.b64encode(b"the words of the file, all of them").decode()
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0 the rest of the picture").decode()
URI = "artifact://art_1"


@pytest.mark.parametrize("content", [CONTENT, JPEG])
def test_echoed_content_becomes_reference(content: str) -> None:
    """Source: S2-15."""
    stand_ins = FileReferences.of([(content, URI)])

    value = {"copy": content, "said": f"here: {content}!", "deep": [{"b64": content}]}
    assert stand_ins.value(value, contents=True) == {
        "copy": URI,
        "said": f"here: {URI}!",
        "deep": [{"b64": URI}],
    }
    assert stand_ins.text(f"also {content}") == f"also {URI}"


def test_content_stays_where_bytes_travel_inline() -> None:
    stand_ins = FileReferences.of([(CONTENT, URI)])

    assert stand_ins.value({"copy": CONTENT}, contents=False) == {"copy": CONTENT}


@pytest.mark.parametrize("origin", ["aGk=", "out/report_final_version.txt"])
def test_text_occurring_by_chance_is_not_an_echo(origin: str) -> None:
    stand_ins = FileReferences.of([(origin, URI)])

    value = {"said": f"I wrote {origin} for you"}
    assert stand_ins.value(value, contents=True) == value


def test_many_contents_become_own_references() -> None:
    stand_ins = FileReferences.of((f"aGVsbG8gd29ybGQh{n:04d}", f"artifact://{n}") for n in range(1000))

    assert (
        stand_ins.text("see aGVsbG8gd29ybGQh0007aGVsbG8gd29ybGQh0999.") == "see artifact://7artifact://999."
    )
    assert stand_ins.value({"n": "aGVsbG8gd29ybGQh00"}, contents=True) == {"n": "aGVsbG8gd29ybGQh00"}


def test_search_for_many_contents_takes_linear_time() -> None:
    stand_ins = FileReferences.of((f"aGVsbG8gd29ybGQh{n:04d}", f"artifact://{n}") for n in range(1000))
    texts = ["aGVsbG8gd29ybGQhISEh" + str(n) for n in range(20_000)]

    # 0.1 s on a quiet machine, and a minute where each is looked for in each.
    assert cpu_s(lambda: stand_ins.value({"texts": texts}, contents=True)) < 2


PLACES = {
    "/tmp/alice/out/report": "artifact://a_1",
    "/tmp/alice/out/report.csv": "artifact://a_2",
    "/tmp/alice/Bericht Q3 (ü).pdf": "artifact://a_3",
    "/tmp/alice/東京.csv": "artifact://a_4",
}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("/tmp/alice/out/report", "artifact://a_1"),
        ("/tmp/alice//out/./report.csv", "artifact://a_2"),
        ("Saved to /tmp/alice/out/report.", "Saved to artifact://a_1."),
        ("(/tmp/alice/out/report.csv, '/tmp/alice/out/report')", "(artifact://a_2, 'artifact://a_1')"),
        ("see `/tmp/alice/Bericht Q3 (ü).pdf`", "see `artifact://a_3`"),
        ("已保存到/tmp/alice/東京.csv。", "已保存到artifact://a_4。"),
        ("file:///tmp/alice/Bericht%20Q3%20%28%C3%BC%29.pdf", "artifact://a_3"),
        ("[it](file:///tmp/alice/Bericht%20Q3%20(%C3%BC).pdf).", "[it](artifact://a_3)."),
        ("it is file:///tmp/alice/Bericht Q3 (ü).pdf, open it", "it is artifact://a_3, open it"),
        ("FILE://localhost/tmp/alice/out/report.csv", "artifact://a_2"),
        ("sandbox:/tmp/alice/%E6%9D%B1%E4%BA%AC.csv", "artifact://a_4"),
        ('{"path": "/tmp/alice/out/report.csv"}', '{"path":"artifact://a_2"}'),
    ],
)
def test_paths_of_stored_files_become_references(message: str, shown: str) -> None:
    stand_ins = FileReferences.of([], PLACES)

    assert stand_ins.text(message) == shown
    if not message.startswith("{"):
        assert stand_ins.value({"said": [message]}, contents=False) == {"said": [shown]}


@pytest.mark.parametrize(
    "message",
    [
        "/tmp/alice/out/report.csv.bak",
        "/tmp/alice/out/report_2.csv",
        "/tmp/alice/out/report/part",
        "/tmp/alice/out/report-old",
        "/data/tmp/alice/out/report",
        "/tmp/alice/out/",
        "https://example.com/tmp/alice/out/report",
        "file:///tmp/alice/other.csv",
        "file:///tmp/bob/out/report",
    ],
)
def test_paths_of_other_files_stay(message: str) -> None:
    stand_ins = FileReferences.of([], PLACES)

    assert stand_ins.text(message) == message
    assert stand_ins.value(message, contents=False) == message


def test_paths_in_a_long_text_take_linear_time() -> None:
    stand_ins = FileReferences.of([], {f"/tmp/alice/out/{n}.csv": f"artifact://a_{n}" for n in range(1000)})
    text = "see /tmp/alice/out/7.csv and /tmp/alice/out/none.csv; " * 20_000

    assert cpu_s(lambda: stand_ins.text(text)) < 2
    assert stand_ins.text(text).count("artifact://a_7 ") == 20_000
