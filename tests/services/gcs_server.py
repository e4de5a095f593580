"""The part of Google Cloud Storage's XML API that a storage uses: `PORT KEY`, buckets in memory.

Emulators of others do not look at `x-goog-if-generation-match`, which is what makes writers exclude
each other; this one does, as Google documents it: https://cloud.google.com/storage/docs/xml-api.
Requests have to carry a token signed with KEY, a file with the public key of a service account.
`PUT /BUCKET` without a token creates a bucket.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

_PAGE = 1000


@dataclass
class Blob:
    data: bytes
    generation: int
    changed: float = field(default_factory=time.time)

    @property
    def headers(self) -> dict[str, str]:
        return {
            "ETag": f'"{hashlib.md5(self.data).hexdigest()}"',
            "Last-Modified": formatdate(self.changed, usegmt=True),
            "x-goog-generation": str(self.generation),
        }


@dataclass
class Buckets:
    """All objects; whatever one request does is done under the lock."""

    blobs: dict[str, dict[str, Blob]] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    generations: Any = field(default_factory=lambda: itertools.count(1_700_000_000_000_000))


class Problem(Exception):
    def __init__(self, status: int, code: str) -> None:
        self.status = status
        self.code = code


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    buckets = Buckets()
    public_key: Any = None

    def do_GET(self) -> None:
        self._answered(lambda: self._read() if self.key else self._listing())

    def do_HEAD(self) -> None:
        self._answered(self._read)

    def do_PUT(self) -> None:
        self._answered(self._written if self.key else self._created)

    def do_POST(self) -> None:
        self._answered(self._begun if "uploads" in self.query else self._completed)

    def do_DELETE(self) -> None:
        self._answered(self._deleted)

    # -- what is asked

    @property
    def query(self) -> dict[str, str]:
        words = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in words.items()}

    @property
    def bucket(self) -> str:
        return unquote(urlsplit(self.path).path.split("/", 2)[1])

    @property
    def key(self) -> str:
        return unquote("".join(urlsplit(self.path).path.split("/", 2)[2:]))

    # -- what is done

    def _created(self) -> tuple[int, dict[str, str], bytes]:
        self.buckets.blobs.setdefault(self.bucket, {})
        return 200, {}, b""

    def _read(self) -> tuple[int, dict[str, str], bytes]:
        blob = self._blobs().get(self.key)
        if blob is None:
            raise Problem(404, "NoSuchKey")
        return 200, blob.headers, blob.data

    def _deleted(self) -> tuple[int, dict[str, str], bytes]:
        if "uploadId" in self.query:
            self.buckets.uploads.pop(self.query["uploadId"], None)
        elif self._blobs().pop(self.key, None) is None:
            raise Problem(404, "NoSuchKey")
        return 204, {}, b""

    def _written(self) -> tuple[int, dict[str, str], bytes]:
        if "uploadId" in self.query:
            self._upload()[int(self.query["partNumber"])] = self.body
            return 200, {"ETag": f'"{hashlib.md5(self.body).hexdigest()}"'}, b""
        return self._stored(self.body)

    def _begun(self) -> tuple[int, dict[str, str], bytes]:
        self._blobs()
        name = f"upload-{next(self.buckets.generations)}"
        self.buckets.uploads[name] = {}
        return 200, {}, _xml("InitiateMultipartUploadResult", f"<UploadId>{name}</UploadId>")

    def _completed(self) -> tuple[int, dict[str, str], bytes]:
        parts = self._upload()
        del self.buckets.uploads[self.query["uploadId"]]
        _, headers, _ = self._stored(b"".join(parts[number] for number in sorted(parts)))
        etag = escape(headers["ETag"])
        return 200, headers, _xml("CompleteMultipartUploadResult", f"<ETag>{etag}</ETag>")

    def _listing(self) -> tuple[int, dict[str, str], bytes]:
        prefix = self.query.get("prefix", "")
        delimiter = self.query.get("delimiter", "")
        after = base64.b64decode(self.query.get("continuation-token", "")).decode()
        limit = min(int(self.query.get("max-keys", _PAGE)), _PAGE)
        entries: dict[str, str] = {}
        for key, blob in sorted(self._blobs().items()):
            if not key.startswith(prefix):
                continue
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            name = f"{prefix}{head}{found}" if found else key
            if name > after:
                entries[name] = _prefix(name) if found else _contents(name, blob)
        names = list(entries)[:limit]
        text = "".join(entries[name] for name in names)
        if len(entries) > limit:
            token = base64.b64encode(names[-1].encode()).decode()
            text += f"<NextContinuationToken>{token}</NextContinuationToken>"
        text += f"<IsTruncated>{str(len(entries) > limit).lower()}</IsTruncated>"
        return 200, {}, _xml("ListBucketResult", text)

    def _stored(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        blobs = self._blobs()
        there = blobs.get(self.key)
        wanted = self.headers.get("x-goog-if-generation-match")
        if wanted is not None and int(wanted) != (there.generation if there else 0):
            raise Problem(412, "PreconditionFailed")
        blob = blobs[self.key] = Blob(data, next(self.buckets.generations))
        return 200, blob.headers, b""

    def _blobs(self) -> dict[str, Blob]:
        if self.bucket not in self.buckets.blobs:
            raise Problem(404, "NoSuchBucket")
        return self.buckets.blobs[self.bucket]

    def _upload(self) -> dict[int, bytes]:
        if self.query.get("uploadId") not in self.buckets.uploads:
            raise Problem(404, "NoSuchUpload")
        return self.buckets.uploads[self.query["uploadId"]]

    # -- what is answered

    def _answered(self, action: Any) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            if self.key or self.command != "PUT":
                self._check_token()
            with self.buckets.lock:
                status, headers, data = action()
        except Problem as problem:
            status, headers = problem.status, {}
            data = _xml("Error", f"<Code>{problem.code}</Code>")
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _check_token(self) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        try:
            signed, _, signature = token.rpartition(".")
            self.public_key.verify(_decoded(signature), signed.encode(), PKCS1v15(), SHA256())
            claims = json.loads(_decoded(signed.partition(".")[2]))
        except (InvalidSignature, ValueError):
            raise Problem(401, "AuthenticationRequired") from None
        if claims["exp"] < time.time():
            raise Problem(401, "AuthenticationRequired")

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _contents(key: str, blob: Blob) -> str:
    changed = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(blob.changed))
    etag = escape(blob.headers["ETag"])
    return (
        f"<Contents><Key>{escape(key)}</Key><Size>{len(blob.data)}</Size><ETag>{etag}</ETag>"
        f"<Generation>{blob.generation}</Generation><LastModified>{changed}</LastModified>"
        "</Contents>"
    )


def _prefix(name: str) -> str:
    return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"


def _xml(name: str, text: str) -> bytes:
    return f"<?xml version='1.0' encoding='UTF-8'?><{name}>{text}</{name}>".encode()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    Handler.public_key = load_pem_public_key(Path(sys.argv[2]).read_bytes())
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
