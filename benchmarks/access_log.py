"""What clients have asked an S3 gateway for, as it writes that into its access log."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from job_places import place_of

_LINE = re.compile(
    r"s3_(?P<operation>[A-Za-z0-9]+) .*? (?P<target>/\S*) (?P<status>\d{3}) \S+ \d+ (?P<size>\d+) "
)
_OPERATIONS = {
    "PutObject": "PUT",
    "CreateMultipartUpload": "PUT",
    "UploadPart": "PUT",
    "CompleteMultipartUpload": "PUT",
    "GetObject": "GET",
    "HeadObject": "HEAD",
    "DeleteObject": "DELETE",
    "ListObjectsV2": "LIST",
}
PRICES = {"PUT": 1.0, "LIST": 1.0, "GET": 0.08, "HEAD": 0.08, "DELETE": 0.0}
"""What a request costs as a multiple of a PUT, by the price list of Amazon S3 in us-east-1."""
PRICED = "a LIST costs as much as a PUT, a GET 0.08 of it, a DELETE nothing"


@dataclass(frozen=True)
class Request:
    """PUT, GET, HEAD, DELETE or LIST of a path in the job directory."""

    operation: str
    path: str
    size: int = 0
    """Bytes that were sent with it."""

    @property
    def place(self) -> str:
        return place_of(self.path)


def read(log: Path, job: str) -> list[Request]:
    """The requests about a job directory, in the order in which they were answered."""
    lines = log.read_text().splitlines() if log.exists() else []
    found = (_parse(line, job) for line in lines)
    return [request for request in found if request is not None]


def _parse(line: str, job: str) -> Request | None:
    match = _LINE.search(line)
    if match is None:
        return None
    target = urlsplit(match["target"])
    path = unquote(target.path).lstrip("/").partition("/")[2]
    operation = _OPERATIONS[match["operation"]]
    if operation == "LIST":
        path = parse_qs(target.query).get("prefix", [""])[0].rstrip("/")
    if f"{path}/".startswith(f"{job}/"):
        return Request(operation, path[len(job) + 1 :], int(match["size"]))
    return None


def counted(requests: Iterable[Request]) -> Counter[tuple[str, str]]:
    """How many there are of each place and operation."""
    return Counter((request.place, request.operation) for request in requests)


def price(requests: Iterable[Request]) -> float:
    """What they cost, in PUTs."""
    return sum(PRICES[request.operation] for request in requests)
