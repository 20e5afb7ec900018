"""
A certificate authority for tests, made with the `openssl` program: TLS servers and client certificates.

The certificates carry the extensions that Python 3.13 insists on (key usage, key identifiers), and are valid for a
day.
"""

import ssl
import subprocess
from pathlib import Path
from typing import Self

import msgspec

_EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class IssuedCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class CertificateAuthority(msgspec.Struct, frozen=True, kw_only=True):
    """An authority whose files lie in *folder*; *certificate* is what clients have to trust."""

    folder: Path
    certificate: Path
    key: Path

    @classmethod
    def create(cls, folder: Path, name: str = "kubernetes") -> Self:
        """Make an authority; its files are written to *folder*, which must exist."""
        certificate, key = folder / f"{name}-ca.crt", folder / f"{name}-ca.key"
        extensions = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature")
        _openssl(
            "req", "-x509", *_EC_KEY, "-keyout", key, "-out", certificate, "-days", "1", "-subj", f"/CN={name}",
            *(option for extension in extensions for option in ("-addext", extension)),
        )  # fmt: skip
        return cls(folder=folder, certificate=certificate, key=key)

    def issue(self, user: str, *, group: str = "", names: str = "DNS:localhost,IP:127.0.0.1") -> IssuedCertificate:
        """Sign a certificate for both ends of TLS: *user* is its CN, *group* its O, *names* its alternative names."""
        stem = self.folder / user.replace(":", "-").replace("/", "-")
        request, issued = stem.with_suffix(".csr"), stem.with_suffix(".crt")
        extensions = stem.with_suffix(".cnf")
        extensions.write_text(
            "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n"
            "extendedKeyUsage=serverAuth,clientAuth\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
            f"subjectAltName={names}\n"
        )
        subject = f"/O={group}/CN={user}" if group else f"/CN={user}"
        _openssl("req", "-new", *_EC_KEY, "-keyout", stem.with_suffix(".key"), "-out", request, "-subj", subject)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial",
            "-out", issued, "-days", "1", "-extfile", extensions,
        )  # fmt: skip
        return IssuedCertificate(certificate=issued, key=stem.with_suffix(".key"))

    def server_context(
        self, certificate: IssuedCertificate, *, clients: ssl.VerifyMode = ssl.CERT_NONE
    ) -> ssl.SSLContext:
        """Settings of a TLS server; *clients* says whether it asks for or insists on certificates of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.certificate, certificate.key)
        context.load_verify_locations(self.certificate)
        context.verify_mode = clients
        return context


def _openssl(*arguments: str | Path) -> None:
    """Run the program; `CalledProcessError` holds what it printed."""
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
