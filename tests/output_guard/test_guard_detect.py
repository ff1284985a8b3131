"""Encoded binary content is found wherever it stands and however it is written; nothing else is."""

import base64
import gzip
import hashlib
import json
import quopri
import re
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from guard_samples import ENCODINGS, FORMATS, PDF, b64, noise
from guard_shelf import Shelf, guarded

from runner.output_guard.json_view import text_of

TEXT = b64(PDF)
LINES = ENCODINGS["in lines"](PDF)


@pytest.mark.parametrize("name", FORMATS)
def test_format_is_detected_by_bytes_and_stored_whole(shelf: Shelf, name: str) -> None:
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


def rows(content: bytes, width: int = 16) -> list[bytes]:
    return [content[start : start + width] for start in range(0, len(content), width)]


def dump(content: bytes, cell: int = 1) -> str:
    """Write a dump as hexdump -C does, or xxd where a cell has two bytes."""
    return "\n".join(
        f"{16 * number:08x}: {' '.join(each.hex() for each in rows(row, cell)):<47}  "
        + "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        for number, row in enumerate(rows(content))
    )


def words(content: bytes) -> str:
    """Write a dump as hexdump does: words of two bytes, the lower one first, and no letters."""
    return "\n".join(
        f"{16 * number:07x} " + " ".join(word[::-1].hex() for word in rows(row, 2))
        for number, row in enumerate(rows(content))
    )


def signed(content: bytes) -> list[int]:
    return [byte - 256 if byte > 127 else byte for byte in content]


def hidden(text: str) -> str:
    return "### Result\n" + json.dumps({"stdout": text})


def lines(content: bytes, width: int = 76) -> list[str]:
    text = b64(content)
    return [text[start : start + width] for start in range(0, len(text), width)]


# The wave file ends with as many bytes as a row of words has.
WRITINGS: dict[str, Callable[[bytes], Any]] = {
    "xxd -p": lambda content: "$ xxd -p a\n" + "\n".join(row.hex() for row in rows(content, 30)) + "\n$",
    "xxd -p in JSON": lambda content: hidden("\n".join(row.hex() for row in rows(content, 30))),
    "bytea": lambda content: "\\x" + content.hex(),
    "SQL": lambda content: f"INSERT INTO t VALUES (1, X'{content.hex().upper()}');",
    "digits in pairs": lambda content: f"It is: {content.hex(' ')} and that is all",
    "digits with colons": lambda content: content.hex(":").upper(),
    "digits with dashes": lambda content: content.hex("-"),
    "a C array": lambda content: "char a[] = {" + ", ".join(f"0x{byte:02x}" for byte in content) + "};",
    "digits of Java": lambda content: "{" + ", ".join(f"(byte) 0x{byte:02X}" for byte in content) + "}",
    "short digits": lambda content: [hex(byte) for byte in content],
    "a list of pairs": lambda content: [f"{byte:02X}" for byte in content],
    "xxd": lambda content: f"$ xxd a\n{dump(content, 2)}\n$ ",
    "xxd in JSON": lambda content: hidden(dump(content, 2)),
    "lines of xxd": lambda content: dump(content, 2).split("\n"),
    "hexdump -C": dump,
    "hexdump": words,
    "numbers in text": lambda content: f"The bytes: {list(content)}.",
    "numbers of Go": lambda content: "[" + " ".join(map(str, content)) + "]",
    "signed numbers in text": lambda content: f"The bytes: {signed(content)}.",
    "signed numbers": lambda content: {"data": signed(content)},
    "rows of numbers": lambda content: {"data": [list(row) for row in rows(content, 64)]},
    "rows of numbers in text": lambda content: f"It is {[list(row) for row in rows(content, 64)]}",
    "numbers by index": lambda content: {"data": {str(n): byte for n, byte in enumerate(content)}},
    "numbers by index in text": lambda content: hidden("") + json.dumps(dict(enumerate(content))),
    "numbers as strings": lambda content: list(map(str, content)),
    "bytes as Python writes them": lambda content: f"result: {content!r} (done)",
    "bytes as Python writes them, in JSON": lambda content: hidden(repr(content)),
    "characters in JSON": lambda content: hidden(content.decode("latin-1")),
    "characters": lambda content: {"data": content.decode("latin-1")},
    "escapes": lambda content: '"' + "".join(f"\\x{byte:02x}" for byte in content) + '"',
    "octal escapes": lambda content: '"' + "".join(f"\\{byte:03o}" for byte in content) + '"',
    "base64 in JSON, with breaks": lambda content: hidden("\n".join(lines(content))),
    "base64 in JSON in JSON": lambda content: hidden(json.dumps({"a": "\n".join(lines(content))})),
    "base64 in JSON, with slashes": lambda content: hidden(b64(content)).replace("/", "\\/"),
    "base64 in JSON, with both": lambda content: hidden("\n".join(lines(content))).replace("/", "\\/"),
    "base64 in JSON that is cut": lambda content: json.dumps({"a": "\n".join(lines(content)), "b": "x" * 50})[
        :-20
    ],
    "base64 as Python writes it": lambda content: repr(base64.encodebytes(content)),
    "base64 of a mail": lambda content: "X: y\n\n" + "=\n".join(lines(content, 75)).replace("==", "=3D=3D"),
    "base64 in YAML": lambda content: (
        "data: |\n" + "\n".join("    " + line for line in lines(content)) + "\nb: 1"
    ),
    "base64 in a quoted mail": lambda content: "\n".join("> " + line for line in lines(content)),
    "base64 in a script": lambda content: "a = '" + "' +\n    '".join(lines(content)) + "';",
    "base64 in a list": lambda content: lines(content),
    "base64 in a list in text": lambda content: "It is " + json.dumps(lines(content), indent=2),
}


@pytest.mark.parametrize("writing", WRITINGS)
@pytest.mark.parametrize("name", ["pdf", "png", "jpeg", "gzip", "zip"])
def test_a_file_is_found_in_every_writing(shelf: Shelf, name: str, writing: str) -> None:
    content = FORMATS[name][1]()
    content += bytes(-len(content) % 16)

    guarded(WRITINGS[writing](content), store=shelf, max_inline_size=10**6)

    assert shelf.contents == [content]


@pytest.mark.parametrize("writing", [each for each in WRITINGS if isinstance(WRITINGS[each](PDF), str)])
def test_a_file_in_a_long_text_is_found(shelf: Shelf, writing: str) -> None:
    """Each of the places that are judged at once stands somewhere else in the file."""
    files = [FORMATS[name][1]() for name in ("pdf", "png", "jpeg", "gzip", "zip")]
    files = [content + bytes(-len(content) % 16) for content in files]
    filler = "".join(f"word {number}, (and) more: [{number}];\n" for number in range(3000))
    text = "".join(
        f"{filler}{'x ' * number}\n{WRITINGS[writing](content)}\n" for number, content in enumerate(files * 8)
    )

    guarded(text, store=shelf, max_inline_size=10**8, max_observation_chars=10**8)

    assert {content for content in files if content not in shelf.contents} == set()
    assert len(shelf.contents) == 8 * len(files)


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
def test_file_is_found_at_any_position(shelf: Shelf, place: str) -> None:
    value = guarded(PLACES[place], store=shelf).value

    text = text_of(value)
    assert PDF in [*shelf.contents, *unpacked(shelf)]
    assert shelf.records[0].id in text
    assert TEXT[40:100] not in text


@pytest.mark.parametrize(
    "place", [name for name in PLACES if name.startswith("JSON text") and "breaks" not in name]
)
def test_json_text_remains_json_text(shelf: Shelf, place: str) -> None:
    value = guarded(PLACES[place], store=shelf).value

    assert isinstance(value, str)
    json.loads(value)


@pytest.mark.parametrize("place", PLACES)
def test_file_without_store_is_dropped_with_a_warning(place: str) -> None:
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
    "numbers that are not bytes": [37, 80, 68, 70, 45, -1] * 200,
    "truths": [True, False] * 600,
    "JSON text of numbers": json.dumps({"n": [37, 80, 68, 71, 45] * 300}),
    "an empty value": {},
    "digests in a list": [hashlib.sha512(bytes([n])).hexdigest() for n in range(50)],
    "names without a meaning": [str(uuid.UUID(bytes=noise(16, n))) for n in range(100)],
    "digests of packages": "\n".join(f'"integrity": "sha512-{b64(noise(64, n))}",' for n in range(50)),
    "addresses of hardware": "\n".join(noise(6, n).hex(":") for n in range(200)),
    "addresses": "\n".join(":".join(word.hex() for word in rows(noise(16, n), 2)) for n in range(99)),
    "keys of hosts": "\n".join(f"h{n} ssh-rsa {b64(b'ssh-rsa' + noise(260, n))}" for n in range(9)),
    "machine code": "\n".join(f" {n:x}:\t{noise(4, n).hex(' ')}\tmov %eax,%ebx" for n in range(200)),
    "a dump of text": dump(b"just some text, " * 100),
    "a dump below the limit": dump(FORMATS["png"][1]()[:192], 2),
    "pixels": [[[n % 256, 3 * n % 256, 7] for n in range(40)] for _ in range(20)],
    "numbers by index": {str(n): 7 * n % 256 for n in range(400)},
    "a table": "\n".join(",".join(str(n * m % 256) for n in range(12)) for m in range(200)),
    "rows of a database": "\n".join(
        f"INSERT INTO u VALUES ({n}, 0x{noise(16, n).hex()});" for n in range(99)
    ),
    "a program in few lines": "!function(e,t){t.a=[1,2,255,0x89];e='\\u00e9\\x41'}();" * 60,
    "text with escapes": json.dumps({"t": "\u00e9\u00fc\u00df " * 300}),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_value_without_file_is_unchanged(shelf: Shelf, name: str) -> None:
    value = {"value": HARMLESS[name]}

    done = guarded(value, store=shelf)

    assert done.value is value
    assert (shelf.records, done.warnings, done.events) == ([], (), ())


# Not promised, and so that the document says what is: blanks and other writings are left to the size net.
NOT_ENCODED_SO = {
    "base32": base64.b32encode(PDF).decode(),
    "base85": base64.b85encode(PDF).decode(),
    "quoted-printable": quopri.encodestring(PDF).decode("ascii"),
    "percent signs": urllib.parse.quote(PDF),
    "parts below the least size": [TEXT[start : start + 900] for start in range(0, len(TEXT), 900)],
    "base64 of base64": b64(TEXT.encode()),
    "a page with a picture in it": b64(f"<img src='data:image/png;base64,{TEXT}'>".encode()),
}


@pytest.mark.parametrize("name", NOT_ENCODED_SO)
def test_encodings_other_than_base64_are_limited_by_size_only(shelf: Shelf, name: str) -> None:
    value = {"value": NOT_ENCODED_SO[name]}

    assert guarded(value, store=shelf).value is value
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


def test_unknown_base64_is_stored_without_magic_byte_rule(shelf: Shelf) -> None:
    values = [b64(noise(1500)), b64(b"plain words " * 100), "UEsDB" + b64(noise(1500))[5:]]

    value = guarded(values, store=shelf, binary_detection={"require_magic_bytes": False}).value

    assert value[1] == values[1]
    assert [value[index]["artifact"]["mime_type"] for index in (0, 2)] == [
        "application/octet-stream",
        "application/zip",
    ]
    assert guarded(values, store=shelf).value == values


def test_data_url_is_file_without_known_signature(shelf: Shelf) -> None:
    values = ["data:audio/pcm;base64," + b64(noise(1500)), "data:text/csv;base64," + b64(b"a,b\n" * 400)]

    value = guarded(values, store=shelf).value

    assert shelf.contents == [noise(1500)]
    assert value[1] == values[1]


def test_a_result_is_never_changed_itself(shelf: Shelf) -> None:
    values = {"a": [TEXT], "b": {"c": 1}}

    value = guarded(values, store=shelf).value

    assert values == {"a": [TEXT], "b": {"c": 1}}
    assert value["b"] is values["b"]


def test_quick_scan_misses_nothing_beside_blanks(shelf: Shelf) -> None:
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


def test_file_ending_at_start_of_another_wrapped_file_is_found(shelf: Shelf) -> None:
    parquet = FORMATS["parquet"][1]()
    text = b64(parquet).rstrip("=") + LINES

    value = guarded({"data": text}, store=shelf).value

    assert shelf.contents == [parquet, PDF]
    assert b64(parquet)[:60] not in json.dumps(value)


@pytest.mark.parametrize(
    ("write", "cut"),
    # No base64 is one character longer than whole groups.
    [
        *(pytest.param(b64, cut, id=f"base64-{cut}") for cut in range(3)),
        *(pytest.param(bytes.hex, cut, id=f"hex-{cut}") for cut in range(4)),
    ],
)
@pytest.mark.parametrize("around", ["{}", "see {} there"])
def test_file_cut_off_at_any_character_is_found(
    write: Callable[[bytes], str], cut: int, around: str, shelf: Shelf
) -> None:
    text = write(PDF)[: 4000 - cut]

    value = guarded(around.format(text), store=shelf).value

    assert text[:60] not in json.dumps(value)
    assert [PDF.startswith(content) for content in shelf.contents] == [True]


def test_parquet_before_a_part_of_another_file_is_found(shelf: Shelf) -> None:
    parquet = FORMATS["parquet"][1]()
    parquet = parquet[:4] + bytes(-len(parquet) % 3) + parquet[4:]
    text = b64(b"PAR1\x15" + parquet[5:]) + b64(PDF)[:2002]
    assert text.count("=") == 0

    value = guarded({"data": text}, store=shelf).value

    assert text[:60] not in json.dumps(value)
    assert len(shelf.contents) == 1
