"""Binary formats by their first bytes; short signatures must be confirmed by the following ones.

Text formats are not included: models may read text. Office documents are distinguished from other archives
by the names of their parts, which an archive stores in plain text.

Source: document 004, appendix A; rule X2 of the conformance cases; the formats' own specifications (PNG,
JFIF, RIFF, RFC 1952, RFC 8878, RFC 3533, ISO 14496-12, MS-CFB, MS-BMP, APPNOTE, ELF, PE and others);
requirement S4-108.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from runner.formats.base64 import decode_any

__all__ = [
    "BASE64_PREFIXES",
    "MAGIC_BYTES",
    "PROBE_BYTES",
    "BinaryFormat",
    "begins",
    "first_bytes",
    "identify",
    "identify_base64",
    "magic_numbers",
    "mime_types",
    "runs_on",
]

# Enough for all checks of `identify` except those of the end or of the parts of an archive.
PROBE_BYTES = 3000
# The longest magic number has 16 bytes.
MAGIC_BYTES = 16

Check = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class BinaryFormat:
    """A binary format.

    Attributes:
        name: Short name, which is also the usual ending of a file name.
        mime: MIME type.
    """

    name: str
    mime: str


@dataclass(frozen=True, slots=True)
class _Signature:
    magic: bytes
    kind: BinaryFormat
    offset: int = 0
    check: Check | None = None

    def fits(self, content: bytes) -> bool:
        if content[self.offset : self.offset + len(self.magic)] != self.magic:
            return False
        return self.check is None or self.check(content)


def _u32(content: bytes, offset: int) -> int:
    return int.from_bytes(content[offset : offset + 4], "little")


def _is_bmp(content: bytes) -> bool:
    header_sizes = {12, 16, 40, 52, 56, 64, 108, 124}
    return content[6:10] == b"\0" * 4 and _u32(content, 14) in header_sizes and _u32(content, 10) >= 26


def _is_jpeg(content: bytes) -> bool:
    return len(content) > 3 and 0xC0 <= content[3] <= 0xFE


def _is_gzip(content: bytes) -> bool:
    return len(content) > 9 and not content[3] & 0xE0


def _is_id3(content: bytes) -> bool:
    sizes = content[6:10]
    return len(sizes) == 4 and 2 <= content[3] <= 4 and all(byte < 0x80 for byte in sizes)


def _is_zip_entry(content: bytes) -> bool:
    return len(content) > 29 and content[4] <= 63 and content[5] <= 20


def _is_tiff(content: bytes) -> bool:
    offset = content[4:8]
    return int.from_bytes(offset, "little" if content[:2] == b"II" else "big") >= 8


def _is_pe(content: bytes) -> bool:
    at = _u32(content, 60)
    return 64 <= at < PROBE_BYTES and content[at : at + 4] == b"PE\0\0"


def _is_parquet(content: bytes) -> bool:
    # A page or the file metadata begins with a number. A truncated file, or two in a row, end otherwise.
    return content[4:5] == b"\x15" or len(content) <= PROBE_BYTES or not runs_on(content)


def _is_ogg(content: bytes) -> bool:
    return content[4:5] == b"\0" and len(content) > 26 and content[5] < 8


def _is_flac(content: bytes) -> bool:
    return len(content) > 7 and content[4] & 0x7F == 0 and content[5:8] == b"\0\0\x22"


def _is_ttf(content: bytes) -> bool:
    return len(content) > 15 and 0 < content[5] <= 64 and content[4] == 0 and content[12:16].isascii()


def _is_ico(content: bytes) -> bool:
    return (
        len(content) > 21 and 0 < content[4] < 64 and content[5] == 0 and content[9] == 0 and content[10] <= 1
    )


def _is_class(content: bytes) -> bool:
    return content[4] == 0 and 45 <= content[7] <= 99 if len(content) > 9 else False


def _is_zlib_start(content: bytes) -> bool:
    return content[4:10] in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")


def _is_riff(form: bytes) -> Check:
    return lambda content: content[8:12] == form


_MP3_KBPS = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MP3_HZ = (44100, 48000, 32000)


def _is_mp3_frame(content: bytes) -> bool:
    """Return whether two frames of MPEG 1 layer III follow each other."""
    if len(content) < 4 or content[1] & 0xFE != 0xFA:
        return False
    rate, frequency = content[2] >> 4, content[2] >> 2 & 3
    if not 0 < rate < 15 or frequency == 3:
        return False
    length = 144_000 * _MP3_KBPS[rate] // _MP3_HZ[frequency] + (content[2] >> 1 & 1)
    return content[length : length + 2] == content[:2]


_FTYP = {
    b"avif": BinaryFormat("avif", "image/avif"),
    b"heic": BinaryFormat("heic", "image/heic"),
    b"heix": BinaryFormat("heic", "image/heic"),
    b"mif1": BinaryFormat("heif", "image/heif"),
    b"M4A ": BinaryFormat("m4a", "audio/mp4"),
    b"qt  ": BinaryFormat("mov", "video/quicktime"),
}
_MP4 = BinaryFormat("mp4", "video/mp4")
_ZIP = BinaryFormat("zip", "application/zip")
_OLE = BinaryFormat("doc", "application/x-ole-storage")

_OFFICE = "application/vnd.openxmlformats-officedocument."
_OPEN = "application/vnd.oasis.opendocument."
_PARTS = (
    (b"word/document", BinaryFormat("docx", _OFFICE + "wordprocessingml.document")),
    (b"xl/workbook", BinaryFormat("xlsx", _OFFICE + "spreadsheetml.sheet")),
    (b"ppt/presentation", BinaryFormat("pptx", _OFFICE + "presentationml.presentation")),
)
# The first part of these archives is their MIME type, uncompressed.
_DECLARED = (
    (_OPEN.encode() + b"text", BinaryFormat("odt", _OPEN + "text")),
    (_OPEN.encode() + b"spreadsheet", BinaryFormat("ods", _OPEN + "spreadsheet")),
    (_OPEN.encode() + b"presentation", BinaryFormat("odp", _OPEN + "presentation")),
    (b"application/epub+zip", BinaryFormat("epub", "application/epub+zip")),
)

_RIFF = {
    b"WEBP": BinaryFormat("webp", "image/webp"),
    b"WAVE": BinaryFormat("wav", "audio/wav"),
    b"AVI ": BinaryFormat("avi", "video/x-msvideo"),
}

_SIGNATURES = (
    _Signature(b"%PDF-", BinaryFormat("pdf", "application/pdf")),
    _Signature(b"\x89PNG\r\n\x1a\n", BinaryFormat("png", "image/png")),
    _Signature(b"\xff\xd8\xff", BinaryFormat("jpg", "image/jpeg"), check=_is_jpeg),
    _Signature(b"GIF87a", BinaryFormat("gif", "image/gif")),
    _Signature(b"GIF89a", BinaryFormat("gif", "image/gif")),
    *(_Signature(b"RIFF", kind, check=_is_riff(form)) for form, kind in _RIFF.items()),
    _Signature(b"BM", BinaryFormat("bmp", "image/bmp"), check=_is_bmp),
    _Signature(b"II*\0", BinaryFormat("tiff", "image/tiff"), check=_is_tiff),
    _Signature(b"MM\0*", BinaryFormat("tiff", "image/tiff"), check=_is_tiff),
    _Signature(b"II+\0\x08\0\0\0", BinaryFormat("tiff", "image/tiff")),
    _Signature(b"PK\x03\x04", _ZIP, check=_is_zip_entry),
    _Signature(b"PK\x05\x06\0\0\0\0", _ZIP),
    _Signature(b"PK\x07\x08PK\x03\x04", _ZIP),
    _Signature(b"\x1f\x8b\x08", BinaryFormat("gz", "application/gzip"), check=_is_gzip),
    _Signature(b"\x28\xb5\x2f\xfd", BinaryFormat("zst", "application/zstd")),
    _Signature(b"BZh", BinaryFormat("bz2", "application/x-bzip2"), check=_is_zlib_start),
    _Signature(b"\xfd7zXZ\0", BinaryFormat("xz", "application/x-xz")),
    _Signature(b"7z\xbc\xaf\x27\x1c", BinaryFormat("7z", "application/x-7z-compressed")),
    _Signature(b"Rar!\x1a\x07", BinaryFormat("rar", "application/vnd.rar")),
    _Signature(b"ustar", BinaryFormat("tar", "application/x-tar"), 257),
    _Signature(b"ID3", BinaryFormat("mp3", "audio/mpeg"), check=_is_id3),
    _Signature(b"\xff", BinaryFormat("mp3", "audio/mpeg"), check=_is_mp3_frame),
    _Signature(b"OggS", BinaryFormat("ogg", "audio/ogg"), check=_is_ogg),
    _Signature(b"fLaC", BinaryFormat("flac", "audio/flac"), check=_is_flac),
    _Signature(b"MThd\0\0\0\x06", BinaryFormat("mid", "audio/midi")),
    _Signature(b"\x1a\x45\xdf\xa3", BinaryFormat("mkv", "video/x-matroska")),
    _Signature(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", _OLE),
    _Signature(b"SQLite format 3\0", BinaryFormat("sqlite", "application/vnd.sqlite3")),
    _Signature(b"PAR1", BinaryFormat("parquet", "application/vnd.apache.parquet"), check=_is_parquet),
    _Signature(b"ARROW1\0\0", BinaryFormat("arrow", "application/vnd.apache.arrow.file")),
    _Signature(b"\x93NUMPY", BinaryFormat("npy", "application/x-npy")),
    _Signature(b"\x89HDF\r\n\x1a\n", BinaryFormat("h5", "application/x-hdf5")),
    _Signature(b"\x7fELF", BinaryFormat("elf", "application/x-elf")),
    _Signature(b"MZ", BinaryFormat("exe", "application/vnd.microsoft.portable-executable"), check=_is_pe),
    _Signature(b"\0asm\x01\0\0\0", BinaryFormat("wasm", "application/wasm")),
    _Signature(b"\xca\xfe\xba\xbe", BinaryFormat("class", "application/java-vm"), check=_is_class),
    _Signature(b"\xcf\xfa\xed\xfe", BinaryFormat("macho", "application/x-mach-binary")),
    _Signature(b"wOFF", BinaryFormat("woff", "font/woff")),
    _Signature(b"wOF2", BinaryFormat("woff2", "font/woff2")),
    _Signature(b"OTTO\0", BinaryFormat("otf", "font/otf")),
    _Signature(b"\0\x01\0\0", BinaryFormat("ttf", "font/ttf"), check=_is_ttf),
    _Signature(b"\0\0\x01\0", BinaryFormat("ico", "image/vnd.microsoft.icon"), check=_is_ico),
    _Signature(b"8BPS\0\x01", BinaryFormat("psd", "image/vnd.adobe.photoshop")),
)

_BY_FIRST_BYTE = {
    first: tuple(
        signature for signature in _SIGNATURES if signature.magic[:1] == first and not signature.offset
    )
    for first in {signature.magic[:1] for signature in _SIGNATURES}
}
_LATER = tuple(signature for signature in _SIGNATURES if signature.offset)

# Long signatures in base64: a file may begin after a word that could be base64 as well.
BASE64_PREFIXES = (
    *("JVBERi0", "iVBORw0KGgo", "/9j/", "_9j_", "R0lGODlh", "R0lGODdh", "UEsDB", "H4sI", "UklGR", "SUkqA"),
    *("TU0AK", "SUQz", "T2dnUw", "ZkxhQw", "0M8R4KGxGuE", "U1FMaXRlIGZvcm1hdCAz", "UEFSMQ", "f0VMR"),
    *("AGFzbQEAAAA", "KLUv", "d09GR", "d09GM", "Qlpo", "_Td6WFoA", "/Td6WFoA", "N3q8ryc"),
)


def begins(content: bytes) -> bool:
    """Return whether a format may begin with these bytes: a quick look before `identify`, without tar."""
    known = _BY_FIRST_BYTE.get(content[:1])
    return content[4:8] == b"ftyp" or (known is not None and any(content.startswith(k.magic) for k in known))


@cache
def first_bytes() -> frozenset[bytes]:
    """Return the first bytes for which `begins` can be true."""
    return frozenset({each.magic[:1] for each in _SIGNATURES if not each.offset} | {b"\0"})


@cache
def magic_numbers() -> tuple[bytes, ...]:
    """Return the magic numbers of the known formats that begin with one; tar and MP4 have it later."""
    return tuple(each.magic for each in _SIGNATURES if not each.offset)


def identify(content: bytes, *, probe_bytes: int = 5_000_000) -> BinaryFormat | None:
    """Return the format of `content`, or None if it is unknown.

    Args:
        content: The bytes, or the first `PROBE_BYTES` of them for a preliminary result.
        probe_bytes: How far an archive is searched for the names of its parts.
    """
    if content[4:8] == b"ftyp" and 8 <= int.from_bytes(content[:4], "big") <= 4096:
        return _FTYP.get(content[8:12], _MP4)
    for signature in (*_BY_FIRST_BYTE.get(content[:1], ()), *_LATER):
        if signature.fits(content):
            return _archive(content, probe_bytes) if signature.kind is _ZIP else signature.kind
    return None


def identify_base64(text: object) -> BinaryFormat | None:
    """Return the format of the bytes of a base64 text by its beginning; None if it is unknown."""
    # A partial group of characters would make the whole text invalid.
    content = decode_any(text[: PROBE_BYTES // 3 * 4]) if isinstance(text, str) else None
    return None if content is None else identify(content)


def runs_on(content: bytes) -> bool:
    """Return whether a file does not end as its format requires: it is truncated, or another follows."""
    return content[:4] == b"PAR1" and content[-4:] != b"PAR1"


@cache
def mime_types() -> frozenset[str]:
    """Return the MIME types of all formats that are identified by their bytes."""
    return frozenset(kind.mime for kind in _kinds())


def _kinds() -> Iterator[BinaryFormat]:
    yield from (signature.kind for signature in _SIGNATURES)
    yield from (kind for _, kind in (*_PARTS, *_DECLARED))
    yield from (*_FTYP.values(), _MP4)


def _archive(content: bytes, probe_bytes: int) -> BinaryFormat:
    if content[30:38] == b"mimetype":
        return next((kind for text, kind in _DECLARED if content[38 : 38 + len(text)] == text), _ZIP)
    # The directory of parts is at the end; the parts themselves begin at the start.
    for name, kind in _PARTS:
        if content.find(name, 0, probe_bytes) >= 0 or content.find(name, max(0, len(content) - 65_536)) >= 0:
            return kind
    return _ZIP
