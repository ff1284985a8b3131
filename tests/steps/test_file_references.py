import base64

import pytest

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
