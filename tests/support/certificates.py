"""Certificates for servers and clients on this machine, signed by the test's own authority."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """Two PEM files; the key is in PKCS #8, which Java reads."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates; `ca` is the file that clients and servers trust."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        directory.mkdir(parents=True, exist_ok=True)
        self.ca = directory / "ca.pem"
        signed = (
            self._draft(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, address: str | None = "127.0.0.1") -> Certificate:
        """Write a certificate for `name`, and for an address if one is given, with its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(name)]
        if address is not None:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = (
            self._draft(subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        made = Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        made.cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        made.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return made

    def _draft(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )
