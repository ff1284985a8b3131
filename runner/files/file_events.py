"""Events for users' interfaces when a file is added to My Files or removed.

`artifact_stored` and `artifact_removed` carry a reference, never content. The first has all fields of a row
in a list of files, so that clients need not request the list again. An uploaded file is also announced in a
`files_update`; the files of a result are announced there when the result is known, which determines how to
show them.

Source: requirements S0-68, S4-80; rule H5 of the conformance cases.
"""

from typing import Any

from runner.contract.interface_events import listed_file
from runner.contract.viewers import viewer_of
from runner.files.my_files import FileChange
from runner.store.protocol import Origin, Record
from runner.users.events import Events
from runner.users.usernames import home_segment

__all__ = ["FILES_URI", "REMOVED", "STORED", "tell"]

FILES_URI = "runner://files"
"""The resource that lists a user's files, for models."""

STORED = "artifact_stored"
REMOVED = "artifact_removed"


def tell(events: Events, change: FileChange) -> None:
    """Publish the events of a change to the subscribers of its user."""
    record = change.record
    messages: list[dict[str, Any]] = [
        {
            "type": REMOVED if change.gone else STORED,
            "artifact": record.ref.model_dump(mode="json"),
            "uri": f"artifact://{record.id}",
            "origin": record.metadata.origin.value,
            **({} if change.gone else _stored_file(record)),
        }
    ]
    if record.metadata.origin is Origin.UPLOADED and not change.gone:
        messages.append({"type": "files_update", "files": [_file(record)], "display": {"open": False}})
    for event in messages:
        events.publish(event, user=home_segment(change.user), session=change.session)


def _stored_file(record: Record) -> dict[str, Any]:
    return {
        "content_type": record.mime,
        "created": record.created.isoformat(),
        "expires_at": record.expires_at.isoformat() if record.expires_at else None,
        "pending": record.pending,
        # Such a file is listed only in its own session, but a listener may receive events of all sessions.
        "of_session": record.scope.session_id is not None,
    }


def _file(record: Record) -> dict[str, Any]:
    uri = f"artifact://{record.id}"
    shown = {"name": record.shown, "mime": record.mime, "size": record.size, "uri": uri}
    return listed_file(shown | {"viewer": viewer_of(shown)})
