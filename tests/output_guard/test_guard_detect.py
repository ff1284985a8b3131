"""Encoded binary content is found wherever it stands and however it is written; nothing else is."""

import base64
import gzip
import hashlib
import json
import quopri
import re
import urllib.parse

import pytest
from guard_samples import ENCODINGS, FORMATS, PDF, b64, noise
from guard_shelf import Shelf, guarded
from hypothesis import given
from hypothesis import strategies as st

from runner.output_guard.encoded import has_stretch
from runner.output_guard.json_view import text_of

TEXT = b64(PDF)
LINES = ENCODINGS["in lines"](PDF)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_known_by_its_bytes_and_kept_whole(shelf: Shelf, name: str) -> None:
    """Source: S4-17 to S4-21 and S4-108."""
    mime, make = FORMATS[name]
    content = make()

    value = guarded({"name": "x", "data": b64(content)}, store=shelf).value

    assert shelf.contents == [content]
    assert value["name"] == "x"
    assert value["data"]["artifact"]["mime_type"] == mime
    assert value["data"]["artifact"]["sha256"] == hashlib.sha256(content).hexdigest()
    assert re.search(r"_[0-9a-f]{12}$", value["data"]["artifact"]["id"])


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ["pdf", "png", "wav", "mp4"])
def test_a_file_is_found_in_every_encoding(shelf: Shelf, name: str, encoding: str) -> None:
    content = FORMATS[name][1]()

    value = guarded([ENCODINGS[encoding](content)], store=shelf).value

    assert shelf.contents == [content]
    assert set(value[0]) - {"shape"} == {"artifact", "summary", "read"}


def unpacked(shelf: Shelf) -> list[bytes]:
    return [gzip.decompress(content) for content in shelf.contents if content[:2] == b"\x1f\x8b"]


PLACES = {
    "a list in an object in a list": [{"a": [TEXT]}],
    "JSON text": json.dumps({"a": TEXT}),
    "JSON text in JSON text": json.dumps({"a": json.dumps([{"b": TEXT}])}),
    "JSON text with wrapped lines": json.dumps({"a": LINES}),
    "JSON text with escaped slashes": json.dumps({"a": TEXT}).replace("/", "\\/"),
    "JSON text with an escaped letter": '{"a": "\\u004a' + TEXT[1:] + '"}',
    "JSON text that hides it behind a repeated name": f'{{"a": "{TEXT}", "a": 1}}',
    "JSON text that breaks off": f'{{"a": "{TEXT}", "b": ',
    "JSON lines": "\n".join(json.dumps({"n": n, "d": TEXT}) for n in range(2)),
    "a name": {TEXT: 1},
    "a sentence": f"Here is your file: {TEXT}. Enjoy!",
    "markdown": f"![chart](data:application/pdf;base64,{TEXT})",
    "XML": f"<file>{TEXT}</file>",
    "lines between lines": f"The file:\n{LINES}\nThat was it, bye.",
    "lines of a mail": f"Content:\r\n{LINES.replace(chr(10), chr(13) + chr(10))}\r\n--end--",
    "one line between lines": f"a\n{TEXT}\nb",
    "a text behind a word": f"file_{TEXT}",
    "a text behind an equals sign": f"a={TEXT}",
    "a text behind another": f"{TEXT.rstrip('=')}=={TEXT}",
    "blanks around it": f"  \n{TEXT}\t",
    "text beside half a character": f"\ud800 {TEXT}",
    "a tuple": (TEXT,),
    "a list of numbers": {"type": "Buffer", "data": list(PDF)},
    "JSON text with a list of numbers": json.dumps({"type": "Buffer", "data": list(PDF)}),
    "compressed, then encoded": b64(gzip.compress(PDF)),
    "bytes": {"raw": PDF},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_file_is_found_wherever_it_stands(shelf: Shelf, place: str) -> None:
    value = guarded(PLACES[place], store=shelf).value

    text = text_of(value)
    assert PDF in [*shelf.contents, *unpacked(shelf)]
    assert shelf.records[0].id in text
    assert TEXT[40:100] not in text


@pytest.mark.parametrize(
    "place", [name for name in PLACES if name.startswith("JSON text") and "breaks" not in name]
)
def test_what_was_json_text_stays_json_text(shelf: Shelf, place: str) -> None:
    value = guarded(PLACES[place], store=shelf).value

    assert isinstance(value, str)
    json.loads(value)


@pytest.mark.parametrize("place", PLACES)
def test_without_a_store_the_file_is_left_out_and_a_warning_says_so(place: str) -> None:
    done = guarded(PLACES[place], store=None)

    text = text_of(done.value)
    assert TEXT[40:100] not in text
    assert "truncated" in text
    assert any("no artifact store" in warning for warning in done.warnings)


HARMLESS = {
    "prose": "The quick brown fox jumps over the lazy dog. " * 60,
    "DNA": "AAAACGTACGTTAGC" * 200,
    "a long hexadecimal dump": "deadbeef" * 400,
    "many digests": "\n".join(hashlib.sha256(bytes([n])).hexdigest() for n in range(100)),
    "one word a line": "\n".join(f"word{n}" for n in range(400)),
    "a path like a JPEG": "/9j/home/user//opt/app/lib/" * 60,
    "a word like an archive": "UEsDBrandNameThisIsCamelCaseText" * 50,
    "base64 of text": b64(b"just some text, " * 100),
    "base64 of unknown bytes": b64(b"\x01\x02\x03" + noise(2000)),
    "base64 with blanks": " ".join(TEXT[start : start + 76] for start in range(0, len(TEXT), 76)),
    "base64 of an impossible length": TEXT[: len(TEXT) // 4 * 4 - 3],
    "a token": "eyJhbGciOiJIUzI1NiJ9." + b64(b'{"sub":"1"}' * 90) + "." + b64(noise(32)),
    "a short picture": b64(FORMATS["png"][1]()[:600]),
    "a key": "-----BEGIN PRIVATE KEY-----\n"
    + ENCODINGS["in lines"](noise(1200))
    + "\n-----END PRIVATE KEY-----",
    "numbers": [n / 1000 for n in range(500)],
    "whole numbers": [37, 80, 68, 70, 45, *range(1000)],
    "numbers that are no bytes": [37, 80, 68, 70, 45, -1] * 200,
    "truths": [True, False] * 600,
    "JSON text of numbers": json.dumps({"n": [37, 80, 68, 71, 45] * 300}),
    "an empty value": {},
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_no_file_is_left_alone(shelf: Shelf, name: str) -> None:
    given = {"value": HARMLESS[name]}

    done = guarded(given, store=shelf)

    assert done.value is given
    assert (shelf.records, done.warnings, done.events) == ([], (), ())


# Not promised, and so that the document says what is: blanks and other writings are left to the size net.
NOT_ENCODED_SO = {
    "base32": base64.b32encode(PDF).decode(),
    "base85": base64.b85encode(PDF).decode(),
    "quoted-printable": quopri.encodestring(PDF).decode("ascii"),
    "percent signs": urllib.parse.quote(PDF),
    "digits in pairs": PDF.hex(" "),
    "a dump": ", ".join(f"0x{byte:02x}" for byte in PDF[:1200]),
    "parts below the least size": [TEXT[start : start + 900] for start in range(0, len(TEXT), 900)],
    "base64 of base64": b64(TEXT.encode()),
    "a page with a picture in it": b64(f"<img src='data:image/png;base64,{TEXT}'>".encode()),
}


@pytest.mark.parametrize("name", NOT_ENCODED_SO)
def test_other_writings_are_no_base64_and_are_kept_short_by_size_alone(shelf: Shelf, name: str) -> None:
    given = {"value": NOT_ENCODED_SO[name]}

    assert guarded(given, store=shelf).value is given
    assert len(text_of(guarded({"v": [NOT_ENCODED_SO[name]] * 40}, store=shelf).value)) <= 50_000


def test_the_probe_limit_cuts_nothing_that_is_stored(shelf: Shelf) -> None:
    content = PDF + noise(9000)

    guarded({"d": b64(content)}, store=shelf, binary_detection={"max_decode_bytes": 3000})

    assert shelf.contents == [content]


def test_detection_can_be_switched_off(shelf: Shelf) -> None:
    assert guarded([TEXT], store=shelf).value != [TEXT]
    assert guarded([TEXT], store=shelf, binary_detection={"enabled": False}).value == [TEXT]


def test_a_configured_signature_is_found_beside_the_known_ones(shelf: Shelf) -> None:
    own = b"ACME\x01" + noise(1500)
    signatures = {"QUNNRQ": ["acme", "application/x-acme"]}

    value = guarded([b64(own), TEXT], store=shelf, binary_detection={"signatures": signatures}).value

    assert guarded([b64(own)], store=shelf).value == [b64(own)]
    assert [item["artifact"]["mime_type"] for item in value] == ["application/x-acme", "application/pdf"]


def test_without_magic_bytes_any_base64_that_is_no_text_is_taken(shelf: Shelf) -> None:
    given = [b64(noise(1500)), b64(b"plain words " * 100), "UEsDB" + b64(noise(1500))[5:]]

    value = guarded(given, store=shelf, binary_detection={"require_magic_bytes": False}).value

    assert value[1] == given[1]
    assert [value[index]["artifact"]["mime_type"] for index in (0, 2)] == [
        "application/octet-stream",
        "application/zip",
    ]
    assert guarded(given, store=shelf).value == given


def test_a_result_is_never_changed_itself(shelf: Shelf) -> None:
    given = {"a": [TEXT], "b": {"c": 1}}

    value = guarded(given, store=shelf).value

    assert given == {"a": [TEXT], "b": {"c": 1}}
    assert value["b"] is given["b"]


@given(words=st.lists(st.integers(0, 12), max_size=30), at_least=st.integers(1, 12))
def test_a_quick_look_misses_no_stretch_without_blanks(words: list[int], at_least: int) -> None:
    text = " ".join("x" * length for length in words)

    assert has_stretch(text, at_least) is any(length >= at_least for length in words)


def test_a_quick_look_lets_nothing_by_that_has_blanks_beside_it(shelf: Shelf) -> None:
    numbers = "[" + ", ".join(str(byte) for byte in PDF) + "]"
    beside = {
        "padded": f"  \n {TEXT} \n  ",
        "url": f"data:application/pdf; name=a b;base64,{TEXT}",
        "within": "word " * 400 + TEXT + " word" * 400,
        "numbers": f"  {numbers}",
    }

    value = guarded(beside, store=shelf).value

    assert [TEXT[:500] in item for item in map(str, value.values())] == [False] * 4
    assert shelf.contents == [PDF] * 4


def test_a_file_that_ends_where_wrapped_lines_of_another_begin_is_found_too(shelf: Shelf) -> None:
    parquet = FORMATS["parquet"][1]()
    text = b64(parquet).rstrip("=") + LINES

    value = guarded({"data": text}, store=shelf).value

    assert shelf.contents == [parquet, PDF]
    assert b64(parquet)[:60] not in json.dumps(value)
