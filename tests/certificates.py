"""Certificates of authorities that tests create, as files."""

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path

    @property
    def number(self) -> int:
        return x509.load_pem_x509_certificates(self.certificate.read_bytes())[0].serial_number


@dataclass
class Authority:
    """An authority whose files are in a folder.

    Attributes:
        folder: Folder of the files.
        name: Its common name, and the stem of its file name.
        above: The authority that signed it; None if it is self-signed.
    """

    folder: Path
    name: str = "authority"
    above: "Authority | None" = None
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    certificate: x509.Certificate = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        above = self.above or self
        self.certificate = (
            _builder(self.name, self.name if self.above is None else above.name, self.key, (-DAY, DAY))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(above.key.public_key()), critical=False
            )
            .sign(above.key, hashes.SHA256())
        )
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.pem"

    def signed(
        self,
        name: str,
        *names: x509.GeneralName,
        valid: tuple[timedelta, timedelta] = (-DAY, DAY),
        purposes: Sequence[x509.ObjectIdentifier] = (CLIENT, SERVER),
        common_name: str | None = None,
    ) -> Pair:
        """Sign a certificate; its files replace those of the same name."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(common_name or name, self.name, key, valid)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        chain = [certificate] if self.above is None else [certificate, self.certificate]
        _put(pair.certificate, b"".join(each.public_bytes(serialization.Encoding.PEM) for each in chain))
        _put(pair.key, pem_of(key))
        return pair

    def revoked(self, pair: Pair) -> bytes:
        """Return a certificate revocation list that contains one certificate, as PEM."""
        now = datetime.now(UTC)
        one = x509.RevokedCertificateBuilder().serial_number(pair.number).revocation_date(now - DAY).build()
        return (
            x509.CertificateRevocationListBuilder()
            .issuer_name(_named(self.name))
            .last_update(now - DAY)
            .next_update(now + DAY)
            .add_revoked_certificate(one)
            .add_extension(x509.CRLNumber(1), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
            .sign(self.key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )


def tls_folder(pair: Pair, authorities: Path) -> Path:
    """Return a folder for `auth.gateway_tls`, with symlinks to these files and a hard link to the key."""
    folder = pair.certificate.with_suffix(".tls")
    folder.mkdir(exist_ok=True)
    files = {"tls.crt": pair.certificate, "ca.crt": authorities}
    for name, file in files.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(file)
    key = folder / "tls.key"
    key.unlink(missing_ok=True)
    if pair.key.exists():
        os.link(pair.key, key)
    return folder


def here(*names: x509.GeneralName) -> tuple[x509.GeneralName, ...]:
    """Return the names of a server on this machine, and `names`."""
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    return (x509.DNSName("localhost"), loopback, *names)


def pem_of(key: ec.EllipticCurvePrivateKey, passphrase: bytes | None = None) -> bytes:
    how = (
        serialization.NoEncryption()
        if passphrase is None
        else serialization.BestAvailableEncryption(passphrase)
    )
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


def _put(path: Path, content: bytes) -> None:
    """Replace a file atomically, as a renewal of certificates does."""
    beside = path.with_suffix(".new")
    beside.touch(mode=0o600)
    beside.write_bytes(content)
    os.replace(beside, path)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    name: str, issuer: str, key: ec.EllipticCurvePrivateKey, valid: tuple[timedelta, timedelta]
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + valid[0])
        .not_valid_after(now + valid[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
