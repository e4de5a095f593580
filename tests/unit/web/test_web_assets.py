import hashlib
import re

import pytest
from starlette.requests import Request

from turnback.web.api import RequestError
from turnback.web.server import STATIC, Assets

TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
         ".svg": "image/svg+xml", ".html": "text/html; charset=utf-8",
         ".txt": "text/plain; charset=utf-8"}  # fmt: skip


@pytest.mark.parametrize("path", ["/", "/jobs", "/jobs/likes", "/jobs/a%2Fb/state", "/savepoints"])
def test_the_page_is_at_every_address_of_its_own(browser, path):
    response = browser.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.content == (STATIC / "index.html").read_bytes()


def test_every_file_is_served_with_its_type(browser):
    names = Assets().names()
    assert "index.html" in names
    for name in names:
        response = browser.get(f"/static/{name}")
        assert response.content == (STATIC / name).read_bytes()
        assert response.headers["content-type"] == TYPES["." + name.rpartition(".")[2]]


def test_every_file_of_the_page_has_a_type():
    files = [p.relative_to(STATIC).as_posix() for p in STATIC.rglob("*") if p.is_file()]
    assert Assets().names() == sorted(files)


def test_the_page_names_no_file_that_is_not_there(browser):
    for name in re.findall(r'"(/static/[^"]+)"', (STATIC / "index.html").read_text()):
        assert browser.get(name).status_code == 200, name


def test_a_file_that_is_known_is_not_sent_again(browser):
    first = browser.get("/static/icon.svg")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f'"other", {tag}', f"W/{tag}"):
        again = browser.get("/static/icon.svg", headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    assert browser.get("/static/icon.svg", headers={"If-None-Match": '"x"'}).status_code == 200


def test_only_files_of_the_page_and_no_links(tmp_path):
    (tmp_path / "secret.txt").write_text("s3cret")
    static = tmp_path / "static"
    static.mkdir()
    (static / "index.html").write_text('<script src="/static/a.js">')
    (static / "a.js").write_text("1")
    (static / "b.py").write_text("1")
    (static / "c.txt").symlink_to(tmp_path / "secret.txt")
    (static / "inner").mkdir()
    (static / "inner" / "d.css").write_text("1")
    assets = Assets("/turnback", static)
    assert assets.names() == ["a.js", "index.html", "inner/d.css"]
    page = assets.page(Request({"type": "http", "headers": [], "path_params": {}}))
    assert page.body == b'<script src="/turnback/static/a.js">'
    for name in ("b.py", "c.txt", "inner", "", "../secret.txt", "a.js/"):
        scope = {"type": "http", "headers": [], "path_params": {"name": name}}
        with pytest.raises(RequestError, match="no file"):
            assets.file(Request(scope))


def test_a_missing_file(browser):
    response = browser.get("/static/nothing.js")
    assert response.status_code == 404
    assert response.json()["error"]["kind"] == "NotFound"


def test_vendored_libraries_are_those_that_were_published():
    vendor = STATIC / "vendor"
    text = (vendor / "README.txt").read_text()
    listed = {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", text, re.M)}
    files = {path.name: path.read_bytes() for path in vendor.iterdir() if path.name != "README.txt"}
    assert {name: hashlib.sha256(data).hexdigest() for name, data in files.items()} == listed
    for library, script in (("uPlot", "uPlot.iife.min.js"), ("dagre", "dagre.esm.js")):
        (version,) = re.findall(rf"^{library} ([0-9.]+) \(MIT\)", text, re.M)
        assert version.encode() in files[script]
        assert f"{library}.LICENSE.txt" in files


@pytest.mark.parametrize("suffix", [".js", ".html"])
def test_no_script_needs_what_the_policy_forbids(suffix):
    for path in STATIC.rglob(f"*{suffix}"):
        text = path.read_text()
        assert not re.search(r"\beval\(|new Function\b|<script>| style=| on\w+=\"", text), path
