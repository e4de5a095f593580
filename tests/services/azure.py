"""Azure's emulator of Blob storage, from npm, kept in .cache of the repository."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from services.missing import missing
from services.process import accepts, free_port, running

VERSION = "3.35.0"
"""The last one that runs with Node 20."""
_CACHE = Path(__file__).parents[2] / ".cache" / "npm"
_ACCOUNT = "devstoreaccount1"
# The emulator's documented account, the same for everybody.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class AzureServer:
    """A running emulator, which forgets everything when it ends."""

    port: int

    missing_bucket = "ContainerNotFound|specified container does not exist"
    refused = "AuthorizationFailure|AuthenticationFailed|403"
    flat = True
    "Whether a name can be that of an object and of a directory."

    @property
    def options(self) -> dict[str, str]:
        """What `open_storage` needs to reach it."""
        return self.options_at(self.port)

    def options_at(self, port: int) -> dict[str, str]:
        """The same through another port."""
        return {
            "azure_endpoint": f"http://127.0.0.1:{port}/{_ACCOUNT}",
            "azure_account_key": _KEY,
            "azure_allow_http": "true",
        }

    def named(self, options: dict[str, str]) -> dict[str, str]:
        """Options of every store, by the names that they have for this one."""
        return {f"azure_{name}": value for name, value in options.items()}

    @property
    def environment(self) -> dict[str, str]:
        """The same as environment variables."""
        return {
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{self.port}/{_ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            "AZURE_ALLOW_HTTP": "true",
        }

    def wrong_secrets(self) -> dict[str, str]:
        """A well-formed key that is not this server's."""
        return {"azure_account_key": base64.b64encode(b"another key" * 6).decode()}

    def bucket_uri(self, name: str) -> str:
        return f"abfss://{name}@{_ACCOUNT}.dfs.core.windows.net"

    def create_bucket(self, name: str) -> str:
        """Create a container if need be and return its URI."""
        path = f"/{_ACCOUNT}/{name}"
        dated = f"x-ms-date:{formatdate(usegmt=True)}\nx-ms-version:2021-08-06"
        signed = "PUT" + 12 * "\n" + f"{dated}\n/{_ACCOUNT}{path}\nrestype:container"
        digest = hmac.digest(base64.b64decode(_KEY), signed.encode(), hashlib.sha256)
        headers = dict(line.split(":", 1) for line in dated.splitlines())
        headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = f"http://127.0.0.1:{self.port}{path}?restype=container"
        try:
            urllib.request.urlopen(
                urllib.request.Request(url, method="PUT", headers=headers), timeout=10
            ).close()
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
        return self.bucket_uri(name)


@contextmanager
def azure_server(directory: Path) -> Iterator[AzureServer]:
    """Run the emulator with its log in an existing directory.

    Skips the test when Node is missing, unless CI=true.
    """
    program = emulator()
    port = free_port()
    options = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    where = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with running(
        ["node", program, *where, *options],
        ready=lambda: accepts(port),
        log=directory / "azure.log",
        directory=directory,
    ):
        yield AzureServer(port)


def emulator() -> Path:
    """The program, installed if need be."""
    place = _CACHE / f"azurite-{VERSION}"
    program = place / "node_modules/azurite/dist/src/blob/main.js"
    if program.exists():
        return program
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        missing("Azure's emulator cannot be installed: Node or npm is not installed")
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _install(npm, place)
    return program


def _install(npm: str, place: Path) -> None:
    new = place.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    quiet = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
    done = subprocess.run(
        [npm, "install", "--prefix", new, *quiet, f"azurite@{VERSION}"], cwd=new, timeout=540
    )
    if done.returncode:
        missing("npm could not install Azure's emulator")
    new.rename(place)
