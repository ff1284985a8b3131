"""TLS behind a gateway: the certificate of this server, and the client certificates of gateways.

The files are in the folder of `auth.gateway_tls`. A connection is accepted only from a client with a
certificate of an authority in `ca.crt`. An authority signs for other parties, too. So a client may act for
users only if its certificate has one of `auth.gateway_names` as subjectAltName: DNS names and URIs, compared
exactly. The subject is ignored.

Certificates are renewed on disk. Each new connection uses the current files, or the last good ones while
those are unusable. Established connections are not affected.

Session resumption is off: the certificate is checked at each connection. OpenSSL still resumes TLS 1.2
sessions by their id; `names_of` checks the validity of the certificate again for those.

Source: RFC 5280, 4.2.1.6 (subjectAltName) and 6.1 (paths); RFC 8446, 4.4.2 (client certificates) and 4.6.1
(tickets); RFC 9325, 3.4 and 3.5 (resumption, renegotiation); the `ssl` module, "Security considerations".
"""

import logging
import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.errors import UsageError
from runner.settings.auth import Auth
from runner.settings.parts import IdentitySettings
from runner.system.private_files import read_private, read_public

__all__ = ["GatewayTls", "names_of", "wanted_names"]

log = logging.getLogger(__name__)

_SETTING = "auth.gateway_tls"
_KINDS = ("DNS", "URI")
# Many times the size of a bundle of the web's certificate authorities.
_MOST_BYTES = 4 * 1024 * 1024

Seen = tuple[tuple[int, ...] | None, ...]


def wanted_names(names: Iterable[str]) -> frozenset[str]:
    """Return names of `auth.gateway_names` in the form of `names_of`."""
    return frozenset(f"{'URI' if '://' in name else 'DNS'}:{name}" for name in names)


def names_of(certificate: Mapping[str, Any] | None, *, now: float) -> frozenset[str]:
    """Return the names in a client certificate, each prefixed by its kind: `DNS:…`, `URI:…`.

    Args:
        certificate: Checked certificate of the peer, in the form of `ssl`; None without one.
        now: Seconds since the epoch. A certificate that is not valid then has no names: in a resumed session
            it was checked earlier.
    """
    if not certificate:
        return frozenset()
    begins, ends = (ssl.cert_time_to_seconds(certificate[name]) for name in ("notBefore", "notAfter"))
    if not begins <= now <= ends:
        return frozenset()
    names = certificate.get("subjectAltName", ())
    return frozenset(f"{kind}:{name}" for kind, name in names if kind in _KINDS)


@dataclass(slots=True, eq=False)
class GatewayTls:
    """Source of the TLS context of connections. Make one with `of`."""

    _auth: Auth
    _context: ssl.SSLContext
    _tried: Seen
    warnings: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, settings: IdentitySettings) -> "GatewayTls | None":
        """Return the TLS setup of the settings; None if the server speaks plain HTTP.

        Its `warnings` are sentences about unusual but usable certificates.

        Raises:
            UsageError: A file cannot be read or used; the message names the setting.
        """
        auth = settings.auth
        if auth.gateway_tls is None:
            return None
        # Before the files are read: files that change meanwhile are read again.
        seen = _seen(auth)
        context, warnings = _made(auth, datetime.now(UTC))
        return cls(auth, context, seen, warnings)

    def context(self) -> ssl.SSLContext:
        """Return the context of new connections: from the current files, or the last good ones."""
        seen = _seen(self._auth)
        if seen != self._tried:
            self._tried = seen
            self._renew()
        return self._context

    def _renew(self) -> None:
        try:
            self._context, self.warnings = _made(self._auth, datetime.now(UTC))
        except UsageError as error:
            action = "repair the files, which are read again when they change; the earlier ones stay in use"
            log.warning("certificate reload failed", extra={"problem": str(error), "action": action})
            return
        log.info("certificates reloaded")
        self.tell()

    def tell(self) -> None:
        """Write the warnings to the log."""
        for warning in self.warnings:
            log.warning("certificate suspicious", extra={"problem": warning})


def _files(auth: Auth) -> tuple[Path, Path, Path]:
    folder = Path(str(auth.gateway_tls))
    return folder / "tls.crt", folder / "tls.key", folder / "ca.crt"


def _seen(auth: Auth) -> Seen:
    """Return a key that changes when a file is replaced, written or made readable."""
    return tuple(map(_state, _files(auth)))


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _made(auth: Auth, now: datetime) -> tuple[ssl.SSLContext, tuple[str, ...]]:
    """Return a context of the current files, and warnings about their certificates.

    Raises:
        UsageError: A file cannot be read or used.
    """
    certificate, key, ca = _files(auth)
    own = _certificates(certificate)[0]
    authorities = _certificates(ca)
    context = _context(certificate, key, ca)
    names = [
        (f"{_SETTING} {certificate}", own, "gateways will not connect"),
        *(
            (f"{_SETTING} {ca}: {one.subject.rfc4514_string()}", one, "nobody it signed for gets in")
            for one in authorities
        ),
    ]
    return context, tuple(
        f"{what} {when}; {outcome} until it is renewed"
        for what, one, outcome in names
        if (when := _when(one, now))
    )


def _context(certificate: Path, key: Path, ca: Path) -> ssl.SSLContext:
    if not Path(os.path.realpath(key)).is_relative_to(os.path.realpath(key.parent)):
        # A tool could be granted the folder that holds it.
        raise UsageError(f"{_SETTING} {key} is a link to another folder; put the key itself there, mode 0600")
    if b"ENCRYPTED" in read_private(_SETTING, key, most_bytes=_MOST_BYTES):
        raise UsageError(
            f"{_SETTING} {key} is encrypted, and nobody is asked for its passphrase; "
            "write the key without one, mode 0600"
        )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    # The defaults of Python 3.13: strict RFC 5280, and an intermediate authority may be a trust anchor.
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        message = (
            f"{_SETTING} {key} is not the key of the first certificate in {certificate}; "
            "give the two that belong together"
            if error.reason == "KEY_VALUES_MISMATCH"
            else f"{_SETTING} {certificate} and {key} cannot be used "
            f"({_reason(error)}); give a chain that begins with this server's certificate, and its key, in "
            "PEM form"
        )
        raise UsageError(message) from error
    except OSError as error:
        raise UsageError(f"{_SETTING} {certificate} cannot be read: {error.strerror}") from error
    try:
        context.load_verify_locations(cafile=ca)
    except OSError as error:
        raise UsageError(f"{_SETTING} {ca} cannot be used: {_reason(error)}") from error
    if context.cert_store_stats()["crl"]:
        # A revocation list in the file of authorities must be honoured.
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def _reason(error: OSError) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or str(error)


def _certificates(path: Path) -> "list[Any]":
    """Return the certificates of a file.

    Raises:
        UsageError: It cannot be read, or has none.
    """
    # Needed only with TLS, and slow to import.
    from cryptography import x509  # noqa: PLC0415

    content = read_public(_SETTING, path, most_bytes=_MOST_BYTES)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise UsageError(
            f"{_SETTING} {path} holds no certificate in PEM form (-----BEGIN CERTIFICATE-----), "
            "or a damaged one"
        ) from error


def _when(certificate: Any, now: datetime) -> str:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        return f"is valid from {begins:%Y-%m-%d %H:%M} UTC on only"
    return f"expired on {ends:%Y-%m-%d %H:%M} UTC" if now > ends else ""
