"""Names in addresses are looked up, and never lead to files."""

from urllib.parse import quote

import pytest
from web_support import HOSTILE


@pytest.mark.parametrize(
    "name",
    [
        HOSTILE,
        "..",
        ".",
        "../jobs/likes",
        "../secret.txt",
        "/etc/passwd",
        "likes/../likes",
        "likes%2F..",
        "%2e%2e%2fsecret.txt",
        "file:///etc",
        "likes\\..\\x",
        "~",
        "a" * 300,
        "likes\n",
        "\u202e",
    ],
)
def test_names_are_looked_up_and_never_joined_to_paths(world, browser, name):
    before = sorted(world.base.rglob("*"))
    once = quote(name, safe="").replace(".", "%2E")  # dots alone would be resolved by the client
    for encoded in (once, quote(once, safe="")):
        for path in (
            f"/jobs/{encoded}",
            f"/jobs/{encoded}/checkpoints",
            f"/jobs/likes/requests/{encoded}",
            f"/jobs/likes/snapshots/{encoded}",
            f"/jobs/likes/state?snapshot={encoded}&uid=count&state=total",
            f"/jobs/likes/diff?from={encoded}&to=latest",
            f"/jobs/likes/state?snapshot=latest&uid={encoded}&state=total",
            f"/jobs/likes/state?snapshot=latest&uid=count&state={encoded}",
        ):
            response = browser.api(path)
            assert response.status_code in (400, 404), (path, response.text)
            assert "s3cret" not in response.text
        for action in ("savepoint", "stop", "cancel"):
            assert browser.post(f"/jobs/{encoded}/{action}").status_code in (400, 404)
    assert sorted(world.base.rglob("*")) == before


def test_a_nul_is_refused(browser):
    for path in ("/jobs/a%00b", "/jobs/likes/requests/%00", "/jobs/likes/snapshots/a%00"):
        assert browser.api(path).status_code == 400
    query = "snapshot=latest%00&uid=count&state=total"
    assert browser.api(f"/jobs/likes/state?{query}").status_code == 400


def test_a_link_in_the_root_is_no_job(world, browser):
    (world.root / "linked").symlink_to(world.likes.storage.uri.removeprefix("file://"))
    assert browser.api("/jobs/linked").status_code == 404
    assert browser.post("/jobs/linked/cancel").status_code == 404
    assert world.asked() == []
