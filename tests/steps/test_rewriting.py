from typing import Any

import pytest
from cpu_time import cpu_s
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import CallError, Code
from runner.steps.inputs import FileDelivery, Inputs, Rewriting
from runner.toolset.catalog import ToolSpec

HELD = {"a.txt": "a.txt", "B .csv": "B_.csv"}


def tool(*names: str) -> ToolSpec:
    parameters = {"type": "object", "properties": {name: {} for name in names}}
    return ToolSpec(name="t", parameters=parameters, output_schema=None)


def rewritten(arguments: dict[str, Any], *declared: str, file_delivery: FileDelivery = "path") -> Inputs:
    """Rewrite for a user, ann, who has the files of HELD."""
    rewriting = Rewriting.of(arguments, spec=tool(*declared), username="ann", file_delivery=file_delivery)
    return rewriting.finish(
        paths={name: f"/tmp/ann/input_files/{HELD[name]}" for name in rewriting.by_path if name in HELD},
        links={name: f"/dl/{HELD[name]}?token=s.t" for name in rewriting.by_link if name in HELD},
        names=HELD,
    )


def test_file_names_become_paths_and_links() -> None:
    """Source: S0-49 to S0-51, S0-70 and S1-22."""
    inputs = rewritten(
        {"filename": "a.txt", "filenames": ["B .csv", "new.txt", 5], "file_names": ["a.txt"]},
        *("filename", "filenames", "file_names"),
    )

    assert inputs.arguments == {
        "filename": "/tmp/ann/input_files/a.txt",
        "filenames": ["/tmp/ann/input_files/B_.csv", "new.txt", 5],
        "file_names": ["/dl/a.txt?token=s.t"],
    }
    assert inputs.unknown == ("new.txt",)


def test_all_file_names_become_links_by_setting() -> None:
    inputs = rewritten(
        {"filename": "a.txt", "filenames": ["B .csv"]}, "filename", "filenames", file_delivery="url"
    )

    assert inputs.arguments == {"filename": "/dl/a.txt?token=s.t", "filenames": ["/dl/B_.csv?token=s.t"]}


def test_shown_inputs_have_names_and_no_token() -> None:
    inputs = rewritten(
        {"filename": "B .csv", "file_names": ["a.txt"], "note": {"at": ["/x?token=s.t", "/dl/a.txt"]}},
        *("filename", "file_names", "note", "username"),
    )

    assert inputs.shown() == {
        "filename": "B_.csv",
        "file_names": ["a.txt"],
        "note": {"at": ["/x", "/dl/a.txt"]},
        "username": "ann",
    }


@pytest.mark.parametrize("uri", ["artifact://art_1", "ARTIFACT://art_1", "artifact:art_1"])
def test_artifact_uri_is_looked_up(uri: str) -> None:
    rewriting = Rewriting.of({"filename": uri}, spec=tool("filename"), username="ann", file_delivery="path")

    assert rewriting.by_path == (uri,)


@pytest.mark.parametrize(
    "place",
    [
        "https://x.example/a.txt",
        "file:///a.txt",
        "/a.txt",
        "\\\\server\\a.txt",
        "C:\\a.txt",
        "data:text/plain,a.txt",
    ],
)
def test_path_is_not_a_name_and_stays(place: str) -> None:
    """Source: S0-51."""
    rewriting = Rewriting.of({"filename": place}, spec=tool("filename"), username="ann", file_delivery="path")

    assert rewriting.by_path == ()
    assert rewritten({"filename": place}, "filename") == Inputs(
        arguments={"filename": place}, unknown=(place,)
    )


@pytest.mark.parametrize("name", ["a.txt", "a: b.txt", "sub/a.txt", "../a.txt", "x:y", "http.txt"])
def test_other_text_may_be_a_name(name: str) -> None:
    rewriting = Rewriting.of({"filename": name}, spec=tool("filename"), username="ann", file_delivery="path")

    assert rewriting.by_path == (name,)


@pytest.mark.parametrize("value", ["mallory", None, ["root"], {}])
def test_identity_is_users_over_any_argument(value: object) -> None:
    assert rewritten({"username": value}, "username").arguments == {"username": "ann"}
    assert rewritten({}, "username").arguments == {"username": "ann"}
    assert rewritten({"username": value, "q": 1}, "q").arguments == {"q": 1}


def test_helper_arguments_dropped_unless_declared() -> None:
    """Source: S0-57."""
    helpers = {
        "original_filename": "a",
        "file_url": "/x",
        "filename": "a.txt",
        "filenames": [],
        "file_urls": [],
    }

    assert rewritten({**helpers, "other": 1}, "q").arguments == {"other": 1}
    assert rewritten({"original_filename": "a.txt"}, "original_filename").arguments == {
        "original_filename": "a.txt"
    }


values = st.recursive(
    st.none() | st.booleans() | st.text(st.characters()) | st.sampled_from([*HELD, "username"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["username", "filename", "filenames", "file_names", "file_url", "q", "r"])


@given(st.dictionaries(keys, values), st.sets(keys), st.sampled_from(["path", "url"]))
def test_only_file_and_identity_arguments_change(
    arguments: dict[str, Any], declared: set[str], file_delivery: FileDelivery
) -> None:
    """Source: S1-30."""
    inputs = rewritten(arguments, *declared, file_delivery=file_delivery)

    changed = {
        key for key, value in inputs.arguments.items() if key not in arguments or arguments[key] != value
    }
    assert changed <= {"username", "filename", "filenames", "file_names"} & declared
    assert "token=" not in str(inputs.shown()) or "token=" in str(arguments)
    assert inputs.arguments.get("username", "ann") == "ann"


@pytest.mark.parametrize("delivery", ["path", "url"])
def test_too_many_file_names_refused_at_once(delivery: FileDelivery) -> None:
    few, many = ([f"{number}.csv" for number in range(count)] for count in (1000, 300_000))
    assert rewritten({"filenames": few}, "filenames", file_delivery=delivery).unknown == tuple(few)

    def refuse() -> None:
        with pytest.raises(CallError, match="name more than 1000 files") as refused:
            rewritten({"filenames": many}, "filenames", file_delivery=delivery)
        assert refused.value.code is Code.E_INVALID_ARGUMENT

    assert cpu_s(refuse) < 1


ARRAY = {"type": "array", "items": {"type": "integer"}}
SCHEMAS = {
    "array": ARRAY,
    "maybe": {"anyOf": [ARRAY, {"type": "null"}], "default": None},
    "object": {"$ref": "#/$defs/User"},
    "inner": {"allOf": [{"$ref": "#/$defs/User"}]},
    "number": {"type": "number"},
    "integer": {"type": ["integer", "null"]},
    "flag": {"type": "boolean"},
    "choice": {"enum": [1, 2]},
    "text": {"type": "string"},
    "either": {"anyOf": [ARRAY, {"type": "string"}]},
    "any": {},
    "circle": {"$ref": "#/$defs/Circle"},
    "filenames": {"type": "array", "items": {"type": "string"}},
}
DEFS = {"User": {"type": "object"}, "Circle": {"anyOf": [{"$ref": "#/$defs/Circle"}]}}


def received(**arguments: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": SCHEMAS, "$defs": DEFS}
    spec = ToolSpec(name="t", parameters=parameters, output_schema=None)
    return Rewriting.of(arguments, spec=spec, username="ann", file_delivery="path").arguments


@pytest.mark.parametrize(
    ("argument", "text", "value"),
    [
        ("array", "[1, 2]", [1, 2]),
        ("maybe", "[1]", [1]),
        ("maybe", "null", None),
        ("object", '{"name": "ann"}', {"name": "ann"}),
        ("inner", "{}", {}),
        ("number", "2.5", 2.5),
        ("number", " 2 ", 2),
        ("integer", "7", 7),
        ("flag", "true", True),
        ("choice", "2", 2),
    ],
)
def test_json_text_becomes_value_where_no_string_fits(argument: str, text: str, value: Any) -> None:
    assert received(**{argument: text}) == {argument: value}


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        *(("text", "[1]"), ("either", "[1]"), ("any", "[1]"), ("circle", "[1]"), ("undeclared", "[1]")),
        *(("array", "1,2"), ("array", "[1"), ("array", '{"a": 1}'), ("array", '"[1]"'), ("array", "")),
        *(("flag", "1"), ("flag", "yes"), ("number", "NaN"), ("number", "true"), ("object", "[]")),
        ("array", "[" * 100_000),
    ],
)
def test_text_stays_where_schema_allows_it(argument: str, text: str) -> None:
    assert received(**{argument: text}) == {argument: text}


def test_file_names_in_json_text_are_found() -> None:
    parameters = {"type": "object", "properties": SCHEMAS}
    spec = ToolSpec(name="t", parameters=parameters, output_schema=None)

    rewriting = Rewriting.of(
        {"filenames": '["a.txt", "b.txt"]'}, spec=spec, username="ann", file_delivery="path"
    )

    assert rewriting.by_path == ("a.txt", "b.txt")


def test_long_text_and_wide_schema_cost_little() -> None:
    wide = {"anyOf": [{"type": "null"}] * 1_000_000}
    spec = ToolSpec(name="t", parameters={"properties": {"wide": wide, "array": ARRAY}}, output_schema=None)
    long = f"[{'1,' * 10_000_000}1]"

    texts = {"wide": "null", "array": long}
    rewritings: list[Rewriting] = []

    def begin() -> None:
        rewritings.append(Rewriting.of(texts, spec=spec, username="ann", file_delivery="path"))

    assert cpu_s(begin) < 0.1
    assert rewritings[0].arguments == texts
