"""A server that speaks Google Cloud Storage's XML API, with a service account of its own."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from services.process import accepts, free_port, running


@dataclass(frozen=True)
class GcsServer:
    """A running server, which forgets everything when it ends."""

    port: int
    key: str
    """The key of its service account, as JSON."""

    missing_bucket = "NoSuchBucket"
    refused = "AuthenticationRequired|401"
    flat = True
    "Whether a name can be that of an object and of a directory."

    @property
    def options(self) -> dict[str, str]:
        """What `open_storage` needs to reach it."""
        return self.options_at(self.port)

    def options_at(self, port: int) -> dict[str, str]:
        """The same through another port."""
        return {
            "gcs_endpoint": f"http://127.0.0.1:{port}",
            "gcs_service_account_key": self.key,
            "gcs_allow_http": "true",
        }

    def named(self, options: dict[str, str]) -> dict[str, str]:
        """Options of every store, by the names that they have for this one."""
        return {f"gcs_{name}": value for name, value in options.items()}

    @property
    def environment(self) -> dict[str, str]:
        """The same as environment variables."""
        return {
            "GOOGLE_BASE_URL": f"http://127.0.0.1:{self.port}",
            "GOOGLE_SERVICE_ACCOUNT_KEY": self.key,
            "GOOGLE_ALLOW_HTTP": "true",
        }

    def wrong_secrets(self) -> dict[str, str]:
        """A well-formed key that is not this server's."""
        return {"gcs_service_account_key": service_account()[0]}

    def bucket_uri(self, name: str) -> str:
        return f"gs://{name}"

    def create_bucket(self, name: str) -> str:
        """Create a bucket if need be and return its URI."""
        url = f"http://127.0.0.1:{self.port}/{name}"
        with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10):
            return self.bucket_uri(name)


@contextmanager
def gcs_server(directory: Path) -> Iterator[GcsServer]:
    """Run a server with its log in an existing directory."""
    key, public = service_account()
    (directory / "gcs.pem").write_bytes(public)
    port = free_port()
    program = Path(__file__).with_name("gcs_server.py")
    with running(
        [sys.executable, program, str(port), directory / "gcs.pem"],
        ready=lambda: accepts(port),
        log=directory / "gcs.log",
    ):
        yield GcsServer(port, key)


def service_account() -> tuple[str, bytes]:
    """The key of a new service account as JSON, and its public part."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {
        "type": "service_account",
        "client_email": "turnback@tests.iam.gserviceaccount.com",
        "private_key_id": "1",
        "private_key": private.decode(),
    }
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return json.dumps(account), public
