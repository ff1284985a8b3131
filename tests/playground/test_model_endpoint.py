"""Where models are, what is said to them, and what is made of their answers: without a server of ours.

Source: decision 47.
"""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_support import KEY, MODEL, Reply, endpoint

from runner.errors import UsageError
from runner.playground import anthropic_api, openai_api
from runner.playground.event_stream import EventStream
from runner.playground.model_endpoint import Endpoint
from runner.playground.model_names import ModelNames
from runner.playground.model_turn import turn_of
from runner.settings.settings import Settings
from runner.settings.sources import config_text, load

URL = "https://models.example/v1"
REPLY = Reply("Let me see.", calls=(("double", {"number": 21}), ("double", {"number": 4})))


def test_the_scripted_endpoint_speaks_as_the_official_client_of_openai_expects() -> None:
    with endpoint() as running:
        running.script = [REPLY]
        import openai  # takes seconds, which the collection of all tests would wait for

        client = openai.OpenAI(base_url=f"{running.base}/v1", api_key=KEY, max_retries=0)
        with client.chat.completions.stream(
            model=MODEL, messages=[{"role": "user", "content": "x"}], stream_options={"include_usage": True}
        ) as stream:
            said = stream.get_final_completion()

    message = said.choices[0].message
    assert (message.content or "").strip() == "Let me see."
    assert [call.function.arguments for call in message.tool_calls or ()] == [
        '{"number": 21}',
        '{"number": 4}',
    ]
    assert said.usage is not None
    assert said.usage.completion_tokens == 7


@pytest.mark.release
def test_the_scripted_endpoint_speaks_as_the_official_client_of_anthropic_expects() -> None:
    with endpoint() as running:
        running.script = [REPLY]
        import anthropic  # as above

        client = anthropic.Anthropic(base_url=running.base, api_key=KEY, max_retries=0)
        with client.messages.stream(
            model=MODEL, max_tokens=10, messages=[{"role": "user", "content": "x"}]
        ) as stream:
            said = stream.get_final_message()

    assert [block.type for block in said.content] == ["text", "tool_use", "tool_use"]
    assert [block.input for block in said.content if block.type == "tool_use"] == [
        {"number": 21},
        {"number": 4},
    ]
    assert (said.stop_reason, said.usage.output_tokens) == ("tool_use", 7)


@given(st.lists(st.text(min_size=1, max_size=90), unique=True, max_size=12))
def test_names_of_tools_fit_both_apis_and_lead_back_to_their_tools(names: list[str]) -> None:
    known = ModelNames.of(names)

    theirs = [known.to_model(name) for name in names]
    assert len(set(theirs)) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in theirs)
    assert [known.from_model(each) for each in theirs] == names
    # One that looks as if it had been made stays what it is.
    both = ModelNames.of([*names, *theirs])
    assert len({both.to_model(name) for name in (*names, *theirs)}) == len({*names, *theirs})


@given(st.binary(max_size=60), st.lists(st.integers(1, 9), max_size=40))
def test_events_are_the_same_in_whatever_pieces_they_come(noise: bytes, sizes: list[int]) -> None:
    whole = (
        b"data: one\n\n: beat\n\nevent: x\r\ndata: two\r\ndata: lines\r\n\r\n"
        + noise.replace(b"\0", b"")
        + b"\n\ndata: last"
    )
    at_once, in_pieces = EventStream(), EventStream()

    one = [*at_once.take(whole), *at_once.end()]
    other: list[str] = []
    at = 0
    for size in [*sizes, len(whole)]:
        other += in_pieces.take(whole[at : at + size])
        at += size
    other += in_pieces.end()

    assert one == other
    assert one[:2] == ["one", "two\nlines"]


@pytest.mark.parametrize(
    ("given_settings", "said"),
    [
        ({"playground_model": ("m",)}, "playground_model_url"),
        ({"playground_model_url": URL}, "playground_model"),
        (
            {
                "playground_model_url": URL,
                "playground_model": ("m",),
                "playground_model_key": KEY,
                "playground_model_key_file": "k",
            },
            "one key",
        ),
        (
            {
                "playground_model_url": "http://models.example/v1",
                "playground_model": ("m",),
                "playground_model_key": KEY,
            },
            "https",
        ),
        (
            {
                "playground_model_url": "http://127.models.example/v1",
                "playground_model": ("m",),
                "playground_model_key": KEY,
            },
            "https",
        ),
        (
            {"playground_model_url": f"https://ann:{KEY}@models.example/v1", "playground_model": ("m",)},
            "https://host",
        ),
    ],
)
def test_half_a_configuration_is_none(given_settings: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        load(given_settings)
    assert KEY not in str(refused.value).replace(f"ann:{KEY}@", "")

    good = {"playground_model_url": URL, "playground_model": ("m",), "playground_model_key": KEY}
    assert load(good).playground_model == ("m",)


def test_a_key_is_in_no_report_and_a_file_with_it_is_closed_and_kept_from_tools(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    file.chmod(0o644)
    of = {"playground_model_url": URL, "playground_model": ("m",)}
    with_file = Settings.model_validate({**of, "playground_model_key_file": file})

    with pytest.raises(UsageError, match="chmod 600"):
        Endpoint.of(with_file)
    file.chmod(0o600)
    opened = Endpoint.of(with_file)
    assert opened is not None
    turn = turn_of({"model": "m", "messages": [{"role": "user", "text": "x"}]}, models=("m",), images=False)
    request = opened.request(turn)
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(opened) + repr(request)
    assert file in with_file.private_paths
    shown = config_text(load({**of, "playground_model_key": KEY}))
    assert "playground_model_key " in shown
    assert KEY not in shown
    with pytest.raises(UsageError, match="header"):
        Endpoint.of(Settings.model_validate({**of, "playground_model_key": "two words and more"}))


def test_a_turn_keeps_its_key_out_of_what_is_said_after_the_file_has_another(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    file.chmod(0o600)
    of = {"playground_model_url": URL, "playground_model": ("m",), "playground_model_key_file": file}
    before = Endpoint.of(Settings.model_validate(of))
    assert before is not None
    assert before.renewed() is before

    file.write_text("another-key-0123456789")
    after = before.renewed()

    assert KEY not in before.told(f"it is {KEY}")
    assert after.told("another-key-0123456789") == "[secret playground_model_key_file]"
    for unusable in ("two words and more", "short"):
        file.write_text(unusable)
        assert after.renewed() is after
    file.unlink()
    assert after.renewed() is after


def test_answers_that_are_almost_of_an_api_are_taken_or_refused_but_never_a_fault_of_ours() -> None:
    names = ModelNames.of(["double"])
    lax = openai_api.OpenAIAnswer(names)
    # No number, no id, whole arguments: as some servers of models on one's own machine say it.
    function = '{"name": "double", "arguments": {"number": 2}}'
    chunk = f'{{"choices": [{{"delta": {{"tool_calls": [{{"function": {function}}}]}}}}]}}'
    told = [*lax.read(chunk), *lax.read("[DONE]"), *lax.end()]

    assert [event["type"] for event in told] == ["calling", "call", "end"]
    assert told[1] == {"type": "call", "id": "call_0", "name": "double", "arguments": '{"number":2}'}
    for odd in (
        "",
        "[]",
        "7",
        "{}",
        '{"choices": 7}',
        '{"choices": [7]}',
        '{"type": 7}',
        "[" * 9000,
        '{"type":"content_block_delta"}',
    ):
        for answer in (openai_api.OpenAIAnswer(names), anthropic_api.AnthropicAnswer(names)):
            try:
                list(answer.read(odd))
            except ValueError:
                continue
