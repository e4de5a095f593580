"""The page's files: read once, served by exact name, so that no request can name another file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from turnback.web.errors import Refusal

STATIC = Path(__file__).parent / "static"
_INDEX = "index.html"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True)
class Asset:
    """A file of the page."""

    content: bytes
    type: str
    etag: str


class Assets:
    """The files of the page.

    Args:
        root_path: The path below which a reverse proxy shows the page.
        directory: Where the files are.
    """

    def __init__(self, root_path: str = "", directory: Path = STATIC) -> None:
        self._files = {
            path.relative_to(directory).as_posix(): _load(path, root_path)
            for path in sorted(directory.rglob("*"))
            if path.suffix in _TYPES and path.is_file() and not path.is_symlink()
        }

    def names(self) -> list[str]:
        """Return the names of all files."""
        return sorted(self._files)

    def file(self, request: Request) -> Response:
        """Answer with the file that the path names."""
        return self._answer(request, request.path_params["name"])

    def page(self, request: Request) -> Response:
        """Answer with the page, which finds out by itself what to show at its address."""
        return self._answer(request, _INDEX)

    def _answer(self, request: Request, name: str) -> Response:
        asset = self._files.get(name)
        if asset is None:
            raise Refusal(404, f"the page has no file {name[:80]!r}")
        # Always asked for again, hardly ever sent again: an upgrade shows at once.
        headers = {"ETag": asset.etag, "Cache-Control": "no-cache"}
        known = request.headers.get("if-none-match", "")
        if asset.etag in [tag.strip().removeprefix("W/") for tag in known.split(",")]:
            return Response(None, 304, headers)
        return Response(asset.content, 200, headers, asset.type)


def _load(path: Path, root_path: str) -> Asset:
    content = path.read_bytes()
    if path.name == _INDEX and root_path:
        content = content.replace(b'"/static/', f'"{root_path}/static/'.encode())
    digest = hashlib.blake2b(content, digest_size=12).hexdigest()
    return Asset(content, _TYPES[path.suffix], f'"{digest}"')
