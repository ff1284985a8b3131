import base64

import pytest
from cpu_time import cpu_s

from runner.steps.file_references import FileReferences

CONTENT = base64.b64encode(b"the words of the file, all of them").decode()
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0 the rest of the picture").decode()
URI = "artifact://art_1"


@pytest.mark.parametrize("content", [CONTENT, JPEG])
def test_content_that_is_echoed_anywhere_becomes_a_reference(content: str) -> None:
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


@pytest.mark.parametrize("origin", ["aGk=", "out/report_final_version.txt", "/tmp/alice/report"])
def test_what_could_stand_in_a_text_by_chance_is_no_echo(origin: str) -> None:
    stand_ins = FileReferences.of([(origin, URI)])

    said = {"said": f"I wrote {origin} for you"}
    assert stand_ins.value(said, contents=True) == said


def test_each_of_many_contents_becomes_its_own_reference() -> None:
    stand_ins = FileReferences.of((f"aGVsbG8gd29ybGQh{n:04d}", f"artifact://{n}") for n in range(1000))

    assert (
        stand_ins.text("see aGVsbG8gd29ybGQh0007aGVsbG8gd29ybGQh0999.") == "see artifact://7artifact://999."
    )
    assert stand_ins.value({"n": "aGVsbG8gd29ybGQh00"}, contents=True) == {"n": "aGVsbG8gd29ybGQh00"}


def test_looking_for_many_contents_takes_linear_time() -> None:
    stand_ins = FileReferences.of((f"aGVsbG8gd29ybGQh{n:04d}", f"artifact://{n}") for n in range(1000))
    texts = ["aGVsbG8gd29ybGQhISEh" + str(n) for n in range(20_000)]

    # 0.1 s on a quiet machine, and a minute where each is looked for in each.
    assert cpu_s(lambda: stand_ins.value({"texts": texts}, contents=True)) < 2
