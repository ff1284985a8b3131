"""Incremental parser for the one file in a form that a browser sends.

Source: RFC 7578 (multipart/form-data), RFC 5987 (`filename*`).
"""

import re
from email.message import Message
from email.utils import collapse_rfc2231_value
from typing import Any

from python_multipart.exceptions import FormParserError, MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from runner.http.responses import Refusal

__all__ = ["FormFile"]

# Browsers send one part for each field.
_MOST_PARTS = 100


_EXTENDED_NAME = re.compile(r";\s{0,9}filename\*", re.IGNORECASE)


class FormFile:
    """Parser of a form in chunks, which returns the bytes of its file. Other fields are skipped.

    Attributes:
        name: The file's name, once it is known.
        mime: The MIME type that the browser sent, if any.
    """

    def __init__(self, content_type: str) -> None:
        """Begin with the request's `Content-Type`.

        Raises:
            Refusal: It names no boundary, or one that is too long.
        """
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary:
            raise Refusal(400, "the form's Content-Type names no boundary")
        self.name: str | None = None
        self.mime: str | None = None
        self._found = self._ended = self._inside = False
        self._headers: dict[str, str] = {}
        self._parts = 0
        self._field = self._value = b""
        self._pieces: list[bytes] = []
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_begin": self._begin_header,
                    "on_header_field": self._add_to_field,
                    "on_header_value": self._add_to_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._add_data,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise Refusal(400, f"this is not a multipart form: {error}") from error

    def feed(self, chunk: bytes) -> bytes:
        """Parse the next chunk of the form; return the file's bytes in it.

        Raises:
            Refusal: This is not a form, or it has a second file.
        """
        try:
            self._parser.write(chunk)
        except MultipartParseError as error:
            raise Refusal(400, f"this is not a multipart form: {error}") from error
        data, self._pieces = b"".join(self._pieces), []
        return data

    def close(self) -> None:
        """Check that the form was complete.

        Raises:
            Refusal: It was truncated, or has no file.
        """
        if not self._ended:
            raise Refusal(400, "the form ends before its last boundary; send it again")
        if not self._found:
            raise Refusal(400, "the form has no file; a file is a part with a filename")

    def _begin_part(self) -> None:
        self._headers.clear()
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise Refusal(400, f"the form has more than {_MOST_PARTS} parts; send the file alone")

    def _begin_header(self) -> None:
        self._field = self._value = b""

    def _add_to_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._field.decode("latin-1").lower()] = self._value.decode("latin-1")

    def _end_headers(self) -> None:
        name = _file_name(self._headers.get("content-disposition", ""))
        self._inside = name is not None
        if name is None:
            return
        if self._found:
            raise Refusal(400, "the form has more than one file; send one in each request")
        self._found = True
        self.name = name
        self.mime = self._headers.get("content-type")

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._inside:
            self._pieces.append(data[start:end])

    def _end(self) -> None:
        self._ended = True


def _file_name(disposition: str) -> str | None:
    """Return the file name of a part; None for a plain field. Source: RFC 7578, RFC 5987."""
    if _EXTENDED_NAME.search(disposition):
        message = Message()
        message["Content-Disposition"] = disposition
        parameters: list[tuple[str, Any]] = message.get_params([], "content-disposition")
        values = [value for key, value in parameters if key == "filename" and isinstance(value, tuple)]
        # RFC 6266: the extended form is preferred to the plain one.
        extended = values[0] if values else message.get_filename()
        if extended:
            return collapse_rfc2231_value(extended)
    name = parse_options_header(disposition)[1].get(b"filename")
    return None if name is None else name.decode("utf-8", errors="replace")
