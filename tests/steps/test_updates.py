import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.steps.updates import MESSAGE_MAX_CHARS, PAYLOAD_PREFIX, Update, read_update


def payload(**fields: object) -> str:
    return PAYLOAD_PREFIX + json.dumps(fields)


@pytest.mark.parametrize(
    ("progress", "total", "percentage"),
    [(1, 4, 25.0), (9, 4, 100.0), (-1, 4, 0.0), (3, None, None), (0, 0, None), (0.5, 1, 50.0)],
)
def test_progress_with_total_reported_as_percentage(
    progress: float, total: float | None, percentage: float | None
) -> None:
    update = read_update(progress, total, "step")

    assert update == Update("step", ({"type": "tool_progress", "percentage": percentage, "message": "step"},))


def test_canvas_update_to_interface_and_message_to_client() -> None:
    update = read_update(1, 4, payload(type="canvas_update", content="<h1>x</h1>", progress_message="one"))

    assert update.message == "one"
    assert list(update.events) == [
        {"type": "canvas_content", "content": "<h1>x</h1>"},
        {"type": "tool_progress", "percentage": 25.0, "message": "one"},
    ]


def test_partial_files_checked_as_results_and_not_read_from_disk() -> None:
    update = read_update(
        1,
        4,
        payload(
            type="artifacts",
            artifacts=[
                {"name": "../p.png", "b64": base64.b64encode(b"x").decode(), "mime": "image/png"},
                {"name": "/a/secret", "path": "/etc/passwd", "mime": "text/plain"},
                {"name": "bad", "b64": "***", "mime": "text/plain"},
                {"name": "other", "b64": "eA==", "s3_ref": {"key": "k"}},
            ],
            display={"open_canvas": True},
        ),
    )

    (event,) = update.events
    assert event == {
        "type": "progress_artifacts",
        "artifacts": [
            {"name": "p.png", "b64": "eA==", "mime": "image/png", "size": 1},
            {"name": "secret", "mime": "text/plain"},
        ],
        "display": {"open_canvas": True},
    }
    assert update.message is None


@pytest.mark.parametrize(
    "message",
    [
        "MCP_UPDATE:{bad json",
        "MCP_UPDATE:",
        "MCP_UPDATE:[1]",
        "MCP_UPDATE:5",
        'MCP_UPDATE:{"a": NaN}',
        "MCP_UPDATE:" + "[" * 4000,
        ' MCP_UPDATE:{"type": "canvas_update"}',
    ],
)
def test_non_payload_is_ordinary_message(message: str) -> None:
    update = read_update(1, 2, message)

    assert update.message == message
    assert [event["message"] for event in update.events] == [message]


def test_unknown_payload_type_is_progress_without_json() -> None:
    update = read_update(1, 2, payload(type="hologram", progress_message="turning"))

    assert update == Update("turning", ({"type": "tool_progress", "percentage": 50.0, "message": "turning"},))


def test_message_truncated_to_its_limit() -> None:
    update = read_update(1, 2, "x" * (MESSAGE_MAX_CHARS + 1))

    assert len(str(update.message)) == MESSAGE_MAX_CHARS


@given(
    st.dictionaries(
        st.sampled_from(["type", "content", "progress_message", "artifacts", "display"]),
        st.none()
        | st.sampled_from(["canvas_update", "artifacts"])
        | st.text(st.characters())
        | st.lists(
            st.none() | st.dictionaries(st.sampled_from(["name", "b64", "mime"]), st.text(max_size=4))
        ),
    )
)
def test_any_payload_becomes_json_events(fields: dict[str, object]) -> None:
    update = read_update(1, 2, payload(**fields))

    assert json.loads(json.dumps(update.events, allow_nan=False)) == list(update.events)
    assert update.message is None or not update.message.startswith(PAYLOAD_PREFIX + "{")
