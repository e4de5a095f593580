"""The dashboard is an extra: without its packages all else works, and `ui` says what to do."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import turnback
from unit.cli.cli_support import Shell, make_job

ROOT = Path(__file__).parents[3]
PACKAGES = {"starlette", "uvicorn", "anyio", "h11"}
WITHOUT = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {PACKAGES}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
RUN = "import turnback\nfrom turnback.cli.main import main\nsys.exit(main(sys.argv[1:]))"


@pytest.fixture
def without_packages(tmp_path):
    shell = Shell(tmp_path)
    make_job(shell.root, "orders")

    def run(*words):
        command = [sys.executable, "-c", WITHOUT + RUN, *words]
        return subprocess.run(
            command, cwd=shell.home, env=shell.environ, capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.slow
def test_ui_says_in_one_sentence_what_to_install(without_packages):
    done = without_packages("ui", "--port", "0")
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "pip install 'turnback[ui]'" in line


@pytest.mark.slow
@pytest.mark.parametrize("words", [["list"], ["status", "orders"], ["run", "--help"]])
def test_other_commands_work_without_the_packages(without_packages, words):
    done = without_packages(*words)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_only_the_dashboard_imports_the_packages():
    package = Path(turnback.__file__).parent
    importing = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        if PACKAGES & _imported(ast.parse(path.read_text()))
    }
    assert importing == {"web"}


def test_the_extra_lists_the_packages_and_development_installs_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [line.partition(">")[0] for line in project["optional-dependencies"]["ui"]]
    assert names == ["starlette", "uvicorn"]
    assert not [line for line in project["dependencies"] if line.partition(">")[0] in names]
    own = re.fullmatch(r"turnback\[(.*)\]", project["optional-dependencies"]["dev"][0])
    assert own and "ui" in own[1].split(",")


def _imported(tree: ast.AST) -> set[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return {name.partition(".")[0] for name in names}
