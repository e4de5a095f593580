"""A real S3 gateway over a directory: versitygw, built once into .cache/bin of the repository."""

import fcntl
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.missing import missing
from services.process import free_port, running

VERSION = "v1.8.0"
_CACHE = Path(__file__).parents[2] / ".cache" / "bin"
_PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
_ACCESS_KEY = "turnback-test"
_SECRET_KEY = "turnback-test-secret"


@dataclass(frozen=True)
class S3Server:
    """A running gateway; its buckets are the sub-directories of `directory`."""

    endpoint: str
    directory: Path
    pid: int

    missing_bucket = "NoSuchBucket"
    refused = "SignatureDoesNotMatch|403"
    flat = False  # over a directory; Amazon's is
    "Whether a name can be that of an object and of a directory."

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return int(self.endpoint.rpartition(":")[2])

    @property
    def options(self) -> dict[str, str]:
        """What `open_storage` needs to reach it."""
        return self.options_at(self.port)

    def options_at(self, port: int) -> dict[str, str]:
        """The same through another port."""
        return {
            "endpoint": f"http://127.0.0.1:{port}",
            "access_key_id": _ACCESS_KEY,
            "secret_access_key": _SECRET_KEY,
            "region": "us-east-1",
            "allow_http": "true",
        }

    def named(self, options: dict[str, str]) -> dict[str, str]:
        """Options of every store, by the names that they have for this one."""
        return options

    def wrong_secrets(self) -> dict[str, str]:
        """A well-formed key that is not this server's."""
        return {"secret_access_key": "wrong"}

    def bucket_uri(self, name: str) -> str:
        return f"s3://{name}"

    @property
    def environment(self) -> dict[str, str]:
        """The same as environment variables."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": _ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def create_bucket(self, name: str) -> str:
        """Create a bucket if need be and return its URI."""
        (self.directory / name).mkdir(exist_ok=True)
        return self.bucket_uri(name)


@contextmanager
def s3_server(directory: Path, access_log: Path | None = None) -> Iterator[S3Server]:
    """Run a gateway with data, and its log, below an existing directory.

    With `access_log` it writes every request into that file, in Amazon's format.

    Skips the test when Go is missing, unless CI=true.
    """
    program = gateway()
    data = directory / "s3"
    data.mkdir(exist_ok=True)
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    keys = {"ROOT_ACCESS_KEY": _ACCESS_KEY, "ROOT_SECRET_KEY": _SECRET_KEY}
    logged = [] if access_log is None else ["--access-log", str(access_log)]
    arguments = ["--port", f"127.0.0.1:{port}", "--health", "/health", *logged]
    with running(
        [program, *arguments, "posix", str(data)],
        ready=lambda: _healthy(f"{endpoint}/health"),
        log=directory / "s3.log",
        environment=keys,
    ) as process:
        yield S3Server(endpoint, data, process.pid)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as reply:
            return int(reply.status) == 200
    except (OSError, urllib.error.URLError):
        return False


def gateway() -> Path:
    """The program, built if need be."""
    program = _CACHE / f"versitygw-{VERSION}"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        missing("versitygw cannot be built: Go is not installed")
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "versitygw.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(go, program)
    return program


def _build(go: str, program: Path) -> None:
    target = program.with_name(f"{program.name}.build")
    subprocess.run(
        [go, "install", f"{_PACKAGE}@{VERSION}"],
        env={**os.environ, "GOBIN": str(target), "CGO_ENABLED": "0"},
        check=True,
        timeout=1200,
    )
    (target / "versitygw").rename(program)
    target.rmdir()
