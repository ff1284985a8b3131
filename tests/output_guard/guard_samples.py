"""Real files of many formats, made by the libraries that write them, and ways to write bytes as text."""

import bz2
import gzip
import io
import lzma
import sqlite3
import sys
import tarfile
import wave
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pybase64
from PIL import Image

__all__ = ["ENCODINGS", "FORMATS", "PDF", "b64", "noise"]

OFFICE = "application/vnd.openxmlformats-officedocument."


def noise(count: int, seed: int = 7) -> bytes:
    return np.random.default_rng(seed).bytes(count)


def b64(content: bytes) -> str:
    return pybase64.b64encode_as_string(content)


PDF = b"%PDF-1.7\n" + noise(2000) + b"\n%%EOF\n"


def _picture(kind: str) -> bytes:
    out = io.BytesIO()
    Image.frombytes("RGB", (40, 40), noise(4800)).save(out, kind)
    return out.getvalue()


def _archive(*names: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, noise(1200))
    return out.getvalue()


def _open_document() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.text")
        archive.writestr("content.xml", noise(1200))
    return out.getvalue()


def _sound() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(noise(2000))
    return out.getvalue()


def _tarball() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        entry = tarfile.TarInfo("a.bin")
        entry.size = 1500
        archive.addfile(entry, io.BytesIO(noise(1500)))
    return out.getvalue()


def _database() -> bytes:
    with sqlite3.connect(":memory:") as database:
        database.execute("create table t(a)")
        content = database.serialize()
    database.close()
    return content


def _parquet() -> bytes:
    out = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"a": list(range(500))}), out)
    return out.getvalue()


def _arrow() -> bytes:
    out = io.BytesIO()
    table = pa.table({"a": list(range(500))})
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def _array() -> bytes:
    out = io.BytesIO()
    np.save(out, np.arange(500))
    return out.getvalue()


def _font() -> bytes:
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return (folder / "DejaVuSansMono.ttf").read_bytes()[:20_000]


def _elf() -> bytes:
    return Path(sys.executable).resolve().read_bytes()[:5000]


FORMATS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "pdf": ("application/pdf", lambda: PDF),
    "png": ("image/png", lambda: _picture("PNG")),
    "jpeg": ("image/jpeg", lambda: _picture("JPEG")),
    "gif": ("image/gif", lambda: _picture("GIF")),
    "webp": ("image/webp", lambda: _picture("WEBP")),
    "bmp": ("image/bmp", lambda: _picture("BMP")),
    "tiff": ("image/tiff", lambda: _picture("TIFF")),
    "ico": ("image/vnd.microsoft.icon", lambda: _picture("ICO")),
    "zip": ("application/zip", lambda: _archive("a.bin")),
    "docx": (
        OFFICE + "wordprocessingml.document",
        lambda: _archive("[Content_Types].xml", "word/document.xml"),
    ),
    "xlsx": (OFFICE + "spreadsheetml.sheet", lambda: _archive("[Content_Types].xml", "xl/workbook.xml")),
    "pptx": (
        OFFICE + "presentationml.presentation",
        lambda: _archive("[Content_Types].xml", "ppt/presentation.xml"),
    ),
    "odt": ("application/vnd.oasis.opendocument.text", _open_document),
    "gzip": ("application/gzip", lambda: gzip.compress(noise(1500), mtime=0x5C226B07)),
    "zstd": ("application/zstd", lambda: pa.compress(noise(1500), codec="zstd", asbytes=True)),
    "bz2": ("application/x-bzip2", lambda: bz2.compress(noise(1500))),
    "xz": ("application/x-xz", lambda: lzma.compress(noise(1500))),
    "tar": ("application/x-tar", _tarball),
    "wav": ("audio/wav", _sound),
    "sqlite": ("application/vnd.sqlite3", _database),
    "parquet": ("application/vnd.apache.parquet", _parquet),
    "arrow": ("application/vnd.apache.arrow.file", _arrow),
    "npy": ("application/x-npy", _array),
    "ttf": ("font/ttf", _font),
    "elf": ("application/x-elf", _elf),
    # No library at hand writes these; the beginnings are those that their specifications give.
    "wasm": ("application/wasm", lambda: b"\0asm\x01\0\0\0" + noise(1500)),
    "mp3 with a tag": ("audio/mpeg", lambda: b"ID3\x03\0\0\0\0\0\x0a" + noise(1500)),
    "mp3 of frames": ("audio/mpeg", lambda: (b"\xff\xfb\x90\x00" + noise(413)) * 4),
    "ogg": ("audio/ogg", lambda: b"OggS\0\x02" + bytes(20) + b"\x01\x1e\x01vorbis" + noise(1500)),
    "flac": ("audio/flac", lambda: b"fLaC\0\0\0\x22" + noise(1500)),
    "mp4": ("video/mp4", lambda: b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41" + noise(1500)),
    "ole": ("application/x-ole-storage", lambda: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(1500)),
}


def _wrapped(content: bytes) -> str:
    text = b64(content)
    return "\n".join(text[start : start + 76] for start in range(0, len(text), 76))


ENCODINGS: dict[str, Callable[[bytes], str]] = {
    "base64": b64,
    "without padding": lambda content: b64(content).rstrip("="),
    "url-safe": lambda content: b64(content).replace("+", "-").replace("/", "_"),
    "in lines": _wrapped,
    "in lines with CRLF": lambda content: _wrapped(content).replace("\n", "\r\n") + "\r\n",
    "a data: URL": lambda content: "data:application/octet-stream;base64," + b64(content),
    "an encoded data: URL": lambda content: (
        "data:application/octet-stream;base64," + b64(content).replace("+", "%2B").replace("/", "%2F")
    ),
    "hexadecimal": lambda content: content.hex(),
    "hexadecimal with a prefix": lambda content: "0x" + content.hex().upper(),
}
