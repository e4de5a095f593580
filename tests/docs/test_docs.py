"""What the documentation shows is what there is."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.timeout(300)
def test_the_job_of_the_readme_runs_as_printed_and_takes_checkpoints(tmp_path):
    (shown,) = blocks(ROOT / "README.md", "python")
    (tmp_path / "job.py").write_text(shown)
    (tmp_path / "events").mkdir()
    likes = [{"post": "a", "kind": kind} for kind in ("view", "click", "view")]
    (tmp_path / "events" / "1.json").write_text("\n".join(map(json.dumps, likes)))

    def turnback(*arguments):
        command = [Path(sys.executable).with_name("turnback"), *arguments]
        environment = os.environ | {"TURNBACK_ROOT": str(tmp_path / "jobs")}
        return subprocess.check_output(
            command, cwd=tmp_path, env=environment, text=True, timeout=120
        )

    turnback("run", "-d", "job.py")
    try:
        end = time.monotonic() + 120
        while not list(tmp_path.glob("dashboard/*.json")) and time.monotonic() < end:
            time.sleep(0.2)
    finally:
        turnback("stop", "--yes", "social-media")
    rows = [json.loads(line) for path in tmp_path.glob("dashboard/*.json") for line in path.open()]
    assert rows[-1] == {"post": "a", "views": 2, "clicks": 1}
    assert "COMPLETED" in turnback("checkpoints", "social-media")


@pytest.mark.parametrize("example", ["features.py", "profiles.py"])
def test_the_page_on_transformations_shows_the_examples_as_they_are(example):
    text = (ROOT / "examples" / example).read_text()
    shown = blocks(ROOT / "docs" / "transformations.md", "python")
    assert [block for block in shown if block in text] != []


def test_the_page_on_time_shows_the_sensors_as_they_are():
    (shown,) = [block for block in blocks(ROOT / "docs" / "time.md", "python") if "class" in block]
    assert shown in (ROOT / "examples" / "quiet_sensors.py").read_text()


def test_the_page_on_tables_shows_the_example_as_it_is():
    shown = blocks(ROOT / "docs" / "tables.md", "python")
    assert shown[0] in (ROOT / "examples" / "tables.py").read_text()


def test_the_page_on_sinks_shows_the_examples_as_they_are():
    examples = [ROOT / "examples" / name for name in ("sinks.py", "spark_writers.py")]
    text = "".join(example.read_text() for example in examples)
    shown = blocks(ROOT / "docs" / "sinks.md", "python")
    assert len(shown) == 4
    assert [block for block in shown if block not in text] == []


@pytest.mark.timeout(300)
def test_the_tutorial_runs(tmp_path):
    """Typed into an interactive session, which goes on after an error."""
    typed = "\n\n".join(blocks(ROOT / "docs" / "tutorial.md", "python"))
    done = subprocess.run(
        [sys.executable, "-i"],
        input=f"{typed}\n\nprint('the end')\n",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.stdout.endswith("the end\n"), done.stderr[-3000:]
    assert not re.search(r"^(Traceback|\w*Error\b)", done.stderr, re.MULTILINE), done.stderr[-3000:]
    (commands,) = blocks(ROOT / "docs" / "tutorial.md", "sh")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-euxc", commands],
        env=os.environ | {"PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for shown in ("spending", "FAILED", "chk-", "ann", "ok: ", "TURNBACK_ROOT"):
        assert shown in done.stdout, (shown, done.stdout)


def anchors(page: Path) -> set[str]:
    """Those that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        if "://" in target:
            continue
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{page.name} links to {target}#{anchor}"


def test_configuration_shown_is_accepted(tmp_path, monkeypatch):
    from turnback.config.configuration import Configuration

    path = tmp_path / "shown.yaml"
    monkeypatch.setenv("TURNBACK_CONF", str(path))
    accepted: dict[str, str] = {}
    for shown in blocks(ROOT / "docs" / "operations.md", "yaml"):
        path.write_text(shown)
        accepted |= Configuration.load().raw
    assert {"state.backend.type", "alerts.webhook"} <= accepted.keys()


def test_make_targets_shown_exist():
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"`make (\w+)`|^make (\w+)$", page.read_text(), re.MULTILINE):
            name = target[0] or target[1]
            assert re.search(rf"^{name}:", makefile, re.MULTILINE), f"{page.name}: make {name}"


def test_coverage_names_what_is_there():
    text = (ROOT / "docs" / "coverage.md").read_text()
    for name in re.findall(r"`([\w/]+\.py)`", text):
        places = (ROOT / "src/turnback" / name, ROOT / "tests" / name, ROOT / name)
        assert any(place.exists() for place in places), name
