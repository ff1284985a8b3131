"""Where something stands in a TOML file, for the messages about it."""

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.output_guard.toml_lines import TomlLines

TEXT = """\
# A comment
port = 1

[guard] # [guard.no]
size = 0
a.b = 2
text = '''
[guard.inner]
size = 1
'''
list = [
  1, # ]
  2,
]
inline = {x = {y = 1}}

[[guard.fields."a.b"]]
path = "x"
[[guard.fields."a.b"]]
  path = "y"
[guard.fields."a.b".more]
z = 1
[ guard . tools . t ]
size = 3
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("port",), 2),
        (("guard",), 4),
        (("guard", "size"), 5),
        (("guard", "a", "b"), 6),
        (("guard", "text"), 7),
        (("guard", "list"), 11),
        (("guard", "inline", "x", "y"), 15),
        (("guard", "fields", "a.b", 0, "path"), 18),
        (("guard", "fields", "a.b", 1), 19),
        (("guard", "fields", "a.b", 1, "path"), 20),
        (("guard", "fields", "a.b", 1, "more", "z"), 22),
        (("guard", "tools", "t"), 23),
        (("guard", "tools", "t", "size"), 24),
        (("guard", "tools", "t", "missing"), 23),
        (("guard", "inner"), 4),
        (("nowhere",), None),
        ((), None),
    ],
)
def test_a_place_is_found_or_what_it_is_in(place: tuple[str | int, ...], line: int | None) -> None:
    assert TomlLines(TEXT).of(place) == line


@settings(deadline=None)
@given(st.text(st.sampled_from("a.b=[]{}\"'1,# \n"), max_size=80))
def test_any_text_can_be_asked(text: str) -> None:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = TomlLines(text)

    assert all(lines.of((key,)) is not None for key in tomllib.loads(text))
