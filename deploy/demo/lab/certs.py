"""A certificate authority for one run, and server certificates, good and bad."""

import datetime
import ipaddress
from pathlib import Path
from typing import List, NamedTuple, Union

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOOPBACK = ["127.0.0.1", "localhost"]


class Certificate(NamedTuple):
    cert: Path
    key: Path


def _general_name(name: str) -> Union[x509.IPAddress, x509.DNSName]:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_private(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)


class Authority:
    """Its certificate is `cafile`."""

    def __init__(self, directory: Path, name: str = "SHiNE lab CA"):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.cafile = directory / "ca.pem"
        builder = self._builder(self._name, self._key.public_key(), days=30)
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        builder = builder.add_extension(constraints, critical=True)
        self.cafile.write_bytes(self._sign(builder))

    def issue(self, name: str, hosts: List[str] = LOOPBACK, days: int = 30) -> Certificate:
        """A server certificate for `hosts`; negative `days`: it ended so many days ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key.public_key(), days)
        names = x509.SubjectAlternativeName([_general_name(h) for h in hosts])
        builder = builder.add_extension(names, critical=False)
        pair = Certificate(self.directory / f"{name}.pem", self.directory / f"{name}.key")
        pair.cert.write_bytes(self._sign(builder))
        _write_private(
            pair.key,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
        return pair

    def _builder(
        self, subject: x509.Name, public: ec.EllipticCurvePublicKey, days: int
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.utcnow()
        end = now + datetime.timedelta(days=days)
        begin = min(now, end) - datetime.timedelta(days=1)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
        )

    def _sign(self, builder: x509.CertificateBuilder) -> bytes:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
