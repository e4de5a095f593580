"""Faults 32 and 33 against the real server, with requests that no browser would send."""

import json

import pytest
from web_support import TOKEN, raw, served

pytestmark = pytest.mark.slow

POST = """POST /api/v1/jobs/likes/cancel HTTP/1.1
Host: {host}
Connection: close
Content-Type: {kind}
Content-Length: 2
{more}
{{}}"""


@pytest.fixture
def port(world):
    with served(world.jobs, runs_dir=world.runs) as port:
        yield port


def get(port, path, *headers, host=None, method="GET", version="1.1"):
    lines = [f"{method} {path} HTTP/{version}"]
    if host != "":
        lines.append(f"Host: {host or f'127.0.0.1:{port}'}")
    return raw(port, "\n".join([*lines, "Connection: close", *headers, "", ""]))


def post(port, *headers, host=None, kind="application/json"):
    more = "".join(f"{header}\n" for header in headers)
    return raw(port, POST.format(host=host or f"127.0.0.1:{port}", kind=kind, more=more))


def bearer(token=TOKEN):
    return f"Authorization: Bearer {token}"


def test_it_answers(port):
    status, headers, body = get(port, "/api/v1/jobs")
    assert status == 200
    assert {row["name"] for row in json.loads(body)} == {"broken", "likes", "team/a job"}
    assert "server" not in headers
    assert headers["x-content-type-options"] == "nosniff"


def test_a_foreign_or_missing_host_is_refused(port):
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}"):
        assert get(port, "/api/v1/jobs", host=host)[0] == 403
    assert get(port, "/", host="")[0] == 400
    assert get(port, "/", host="", version="1.0")[0] == 400
    assert get(port, "/", "Host: localhost")[0] == 400
    assert get(port, "/api/v1/jobs", f"X-Forwarded-Host: localhost:{port}", host="evil")[0] == 403


def test_posts_that_must_not_pass_change_nothing(world, port):
    own = f"Origin: http://127.0.0.1:{port}"
    cases = [
        (401, post(port)),
        (401, post(port, own)),
        (401, post(port, bearer("wrong"))),
        (401, post(port, f"Cookie: turnback_{port}={TOKEN}", "X-Turnback: 1")),
        (403, post(port, bearer(), "Origin: http://evil.example")),
        (403, post(port, bearer(), "Origin: null")),
        (403, post(port, bearer(), own, "Origin: http://evil.example")),
        (403, post(port, bearer(), "Sec-Fetch-Site: cross-site")),
        (403, post(port, bearer(), host="evil.example")),
        (415, post(port, bearer(), kind="text/plain")),
        (413, raw(port, _long(port))),
    ]
    for wanted, (status, headers, _) in cases:
        assert status == wanted
        assert not [name for name in headers if name.startswith("access-control")]
    assert world.asked() == []


def test_a_post_that_may_pass(world, port):
    assert post(port, bearer(), f"Origin: http://127.0.0.1:{port}")[0] == 202
    assert len(world.asked()) == 1


def test_the_cookie_of_the_address_with_the_token(world, port):
    status, headers, body = get(port, f"/jobs/likes?token={TOKEN}")
    assert (status, headers["location"]) == (303, "/jobs/likes")
    assert TOKEN not in str(headers) + body.decode()
    cookie = headers["set-cookie"].split(";")[0]
    assert post(port, f"Cookie: {cookie}")[0] == 403
    assert world.asked() == []
    assert post(port, f"Cookie: a=b; {cookie}; c=d", "X-Turnback: 1")[0] == 202


NOWHERE = [
    "/static/../app.py",
    "/static/%2e%2e/app.py",
    "/static/..%2fapp.py",
    "/static/..%252fapp.py",
    "/static/%2e%2e%2f%2e%2e%2f__init__.py",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/..\\app.py",
    "/static/icon.svg%00.js",
    "/static/",
    "/static",
    "/../../etc/passwd",
    "//etc/passwd",
    "/api/v1/jobs/..",
    "/api/v1/jobs/../../secret.txt",
    "/api/v1/jobs/..%2f..%2fsecret.txt",
    "/api/v1/jobs/..%2f..%2fsecret.txt/checkpoints",
    "/api/v1/jobs/likes/requests/..%2fstatus",
    "/api/v1/jobs/likes/requests/../../status.json",
    "/api/v1/jobs/likes/snapshots/..%2f..%2f..%2fsaved%2fone",
    "/api/v1/jobs/likes%2f..%2flikes",
    "/api/v1/jobs/likes%00",
    "/api/v1/jobs/%c0%ae%c0%ae%2f",
    "http://evil.example/api/v1/jobs",
    "*",
]


def test_paths_that_lead_nowhere(world, port):
    for path in NOWHERE:
        status, _, body = get(port, path, bearer())
        assert status in (400, 404), (path, body)
        assert b"s3cret" not in body and b"root:" not in body and b"import" not in body


def test_very_long_names(port):
    for length in (300, 60_000, 100_000):
        assert get(port, f"/api/v1/jobs/{'a' * length}")[0] in (400, 414, 431)


def test_savepoints_are_named_by_id_and_never_by_place(world, port):
    place = str(world.base / "saved" / "one").replace("/", "%2F")
    assert get(port, f"/api/v1/jobs/likes/snapshots/{place}")[0] == 404
    assert get(port, "/api/v1/jobs/likes/snapshots/sp1")[0] == 200


def test_odd_methods(port):
    for method in ("OPTIONS", "TRACE", "PUT", "DELETE", "CONNECT", "FOO"):
        status, headers, body = get(port, "/api/v1/jobs", method=method)
        assert status == 405, method
        assert "access-control-allow-origin" not in headers
        assert b"Connection" not in body


def test_head_has_no_body(port):
    status, headers, body = get(port, "/api/v1/jobs", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0


def test_what_is_no_http_is_refused(port):
    assert raw(port, b"\x16\x03\x01\x00\xa5\x01\x00\r\n\r\n")[0] == 400
    assert get(port, "/api/v1/jobs", "Content-Length: x")[0] == 400


def test_a_body_without_length_is_cut_off(world, port):
    head = (
        f"POST /api/v1/jobs/likes/cancel HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Connection: close\r\n{bearer()}\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    ).encode()
    chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
    assert raw(port, head + chunk * 65 + b"0\r\n\r\n")[0] == 413
    assert world.asked() == []


def test_bound_elsewhere_everything_needs_the_token(world):
    with served(world.jobs, host="0.0.0.0") as port:
        for path in ("/", "/metrics", "/api/v1/jobs", "/static/icon.svg", "/nothing"):
            assert get(port, path)[0] == 401
            assert get(port, path, bearer())[0] in (200, 404)
        assert get(port, "/metrics", bearer(), host=f"evil.example:{port}")[0] == 403
        assert b"<form" in get(port, "/")[2]


def test_a_proxy_in_front_means_that_others_get_in(world):
    with served(world.jobs, allowed_hosts=["jobs.example"]) as port:
        assert get(port, "/api/v1/jobs", host="jobs.example")[0] == 401
        assert get(port, "/api/v1/jobs", bearer(), host="jobs.example")[0] == 200
        https = "X-Forwarded-Proto: https"
        _, headers, _ = get(port, f"/?token={TOKEN}", https, host="jobs.example")
        assert "Secure" in headers["set-cookie"]


def test_read_only(world):
    with served(world.jobs, read_only=True) as port:
        assert post(port, bearer())[0] == 403
    assert world.asked() == []


def _long(port):
    return POST.replace("Content-Length: 2", "Content-Length: 65537").format(
        host=f"127.0.0.1:{port}", kind="application/json", more=bearer() + "\n"
    )
