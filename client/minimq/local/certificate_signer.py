"""Makes certificates with the library `cryptography`, of the extra `minimq[secure]`: import this module lazily."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from minimq_common.errors import InvalidArgument
from minimq_common.security.access_control import USER_URI
from minimq_common.security.certificates import CertificateReport, Pair

_AUTHORITY_DAYS, _DAYS = 3650, 397
_CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Signer:
    """A certificate authority."""

    _key: EllipticCurvePrivateKey
    _certificate: x509.Certificate

    @classmethod
    def new(cls) -> Self:
        """Return a new authority, valid for ten years."""
        key, name = generate_private_key(SECP256R1()), _name("minimq CA")
        made = _begun(name, name, key, _AUTHORITY_DAYS).add_extension(x509.BasicConstraints(True, 0), critical=True)
        return cls(key, made.add_extension(_usage(signs=True), critical=True).sign(key, SHA256()))

    @classmethod
    def load(cls, pair: Pair) -> Self:
        """Return the authority with this certificate and key. Raises `InvalidArgument` if they are damaged."""
        try:
            key = load_pem_private_key(pair.key, None)
            certificate = x509.load_pem_x509_certificate(pair.certificate)
        except (ValueError, TypeError):  # no PEM, or a key with a password
            key, certificate = None, None
        if certificate is None or not isinstance(key, EllipticCurvePrivateKey):
            raise InvalidArgument("the certificate of the authority or its key is damaged: restore both from a backup")
        return cls(key, certificate)

    @property
    def pair(self) -> Pair:
        return _pair(self._certificate, self._key)

    def sign_server(self, hosts: Sequence[str]) -> Pair:
        # Servers are clients of other servers, too.
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._sign("minimq", [_general(host) for host in hosts], usages)

    def sign_user(self, user: str) -> Pair:
        identity = x509.UniformResourceIdentifier(f"{USER_URI}{user}")
        return self._sign(user, [identity], [ExtendedKeyUsageOID.CLIENT_AUTH])

    def _sign(self, common_name: str, names: list[x509.GeneralName], usages: list[x509.ObjectIdentifier]) -> Pair:
        key = generate_private_key(SECP256R1())
        of_signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        made = _begun(_name(common_name), self._certificate.subject, key, _DAYS)
        made = made.add_extension(x509.BasicConstraints(False, None), critical=True)
        made = made.add_extension(_usage(signs=False), critical=True)
        made = made.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        made = made.add_extension(of_signer, critical=False)
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _pair(made.sign(self._key, SHA256()), key)


def describe(certificate: bytes) -> CertificateReport:
    """Return names and expiry of a certificate in PEM. Raises `InvalidArgument`."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        raise InvalidArgument("there is no certificate in PEM, or it is damaged") from None
    names: list[str] = []
    with suppress(x509.ExtensionNotFound):
        names = [
            str(name.value) for name in found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        ]
    return CertificateReport(tuple(names), found.not_valid_after_utc.timestamp())


def _begun(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - _CLOCK_SKEW).not_valid_after(now + timedelta(days=days))
    return made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)


def _pair(certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
