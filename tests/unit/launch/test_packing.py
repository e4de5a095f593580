"""`turnback.launch.packing`: the archive of an environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from turnback.errors import ConfigurationError
from turnback.launch.packing import Environment, current_environment, pack


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An environment with a package, and one of Spark's."""
    prefix = tmp_path / "env"
    venv.create(prefix, symlinks=True)
    packages = next(prefix.glob("lib/python3.*/site-packages"))
    write(packages / "useful" / "__init__.py", "VALUE = 'installed'")
    write(packages / "useful" / "data.txt", "data")
    write(packages / "pyspark" / "__init__.py")
    write(packages / "pyspark" / "jars" / "spark-core.jar", "large")
    return Environment(prefix, packages, (prefix / "bin" / "python").resolve())


def run(archive: Path, code: str) -> str:
    """Run a line in an environment that was unpacked elsewhere."""
    place = archive.parent / "elsewhere"
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="tar")
    done = subprocess.run(
        [place / "bin" / "python", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
        cwd=place,
    )
    return done.stdout.strip()


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as packed:
        return {Path(name).name for name in packed.getnames()}


def test_it_works_where_it_is_unpacked(environment: Environment, tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    archive = tmp_path / "job-env.tar.gz"
    packed = pack(environment, archive, progress=lambda *done: progress.append(done))
    assert run(archive, "import sys, useful; print(useful.__file__, sys.prefix)").split() == [
        str(next((tmp_path / "elsewhere").glob("lib/*/site-packages/useful/__init__.py"))),
        str(tmp_path / "elsewhere"),
    ]
    assert packed.bytes == archive.stat().st_size
    assert packed.files == len(progress)
    assert progress[-1][0] == progress[-1][1] > 0
    assert packed.settings == {
        "spark.archives": f"{archive}#job-env",
        "spark.pyspark.python": "./job-env/bin/python",
    }
    assert not packed.warnings


def test_what_executors_do_not_need_is_left_out(environment: Environment, tmp_path: Path) -> None:
    archive = tmp_path / "job-env.tgz"
    pack(environment, archive)
    found = names(archive)
    assert {"data.txt", "pyvenv.cfg", "python"} <= found
    assert not found & {"spark-core.jar", "activate"}


def test_modules_beside_a_program_come_first(environment: Environment, tmp_path: Path) -> None:
    program = write(tmp_path / "project" / "job.py")
    write(tmp_path / "project" / "helpers" / "__init__.py")
    write(tmp_path / "project" / "helpers" / "rules.py", "RULE = 'mine'")
    write(tmp_path / "project" / "useful.py", "VALUE = 'mine'")
    write(tmp_path / "project" / "data" / "large.csv")
    archive = tmp_path / "job-env.tar.gz"
    packed = pack(environment, archive, program)
    code = "import useful; from helpers.rules import RULE; print(useful.VALUE, RULE)"
    assert run(archive, code) == "mine mine"
    assert packed.modules == ("helpers", "job", "useful")
    assert "large.csv" not in names(archive)


def test_links_are_followed(environment: Environment, tmp_path: Path) -> None:
    write(tmp_path / "shared" / "__init__.py", "VALUE = 7")
    (environment.site_packages / "shared").symlink_to(tmp_path / "shared")
    (tmp_path / "shared" / "itself").symlink_to(tmp_path / "shared")
    (environment.site_packages / "gone.py").symlink_to(tmp_path / "nothing")
    archive = tmp_path / "job-env.tar.gz"
    pack(environment, archive)
    assert run(archive, "import shared; print(shared.VALUE)") == "7"


def test_what_may_be_missing_is_told(environment: Environment, tmp_path: Path) -> None:
    write(environment.site_packages / "more.pth", f"import os\n{tmp_path / 'more'}\n")
    packed = pack(replace(environment, sees_system=True), tmp_path / "job-env.tar.gz")
    system, link = packed.warnings
    assert f"packages of {environment.interpreter}" in system
    assert link == f"modules in {tmp_path / 'more'}, which more.pth adds, are not packed"


@pytest.mark.parametrize("name", ["job-env.zip", "job-env", "job-env.tar"])
def test_a_name_that_spark_does_not_unpack_is_refused(
    environment: Environment, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"has to end in \.tar\.gz or \.tgz"):
        pack(environment, tmp_path / name)


def test_an_archive_that_cannot_be_written_leaves_nothing(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write(tmp_path / "out" / "job-env.tar.gz", "what was there")

    def full(self: object, *args: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "add", full)
    with pytest.raises(ConfigurationError, match=r"cannot write .*No space left"):
        pack(environment, target)
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert target.read_text() == "what was there"
    with pytest.raises(ConfigurationError, match=r"cannot write .*No such file"):
        pack(environment, tmp_path / "nowhere" / "job-env.tar.gz")


def test_python_outside_of_an_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    with pytest.raises(ConfigurationError, match="not in a virtual environment"):
        current_environment()


def test_conda_has_its_own_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conda-meta").mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(ConfigurationError, match=f"conda pack --prefix {tmp_path}"):
        current_environment()


@pytest.mark.parametrize("lists_modules", [True, False])
def test_editable_installations_are_packed_as_they_are(
    environment: Environment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lists_modules: bool,
) -> None:
    source = tmp_path / "checkout" / "src"
    write(source / "mine" / "__init__.py", "VALUE = 'in progress'")
    packages = environment.site_packages
    about = packages / "mine-1.0.dist-info"
    write(about / "METADATA", "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    editable = {"dir_info": {"editable": True}, "url": (tmp_path / "checkout").as_uri()}
    write(about / "direct_url.json", json.dumps(editable))
    write(about / "RECORD", "_mine.pth,,\nmine-1.0.dist-info/METADATA,,\n")
    if lists_modules:
        write(about / "top_level.txt", "mine\n")
    write(packages / "_mine.pth", f"{source}\n")
    monkeypatch.setattr(sys, "prefix", str(environment.prefix))
    monkeypatch.syspath_prepend(str(source))
    packed = pack(current_environment(), tmp_path / "job-env.tar.gz")
    assert packed.modules == ("mine",)
    assert not packed.warnings
    code = "import mine; print(mine.VALUE, mine.__file__)"
    text, file = run(tmp_path / "job-env.tar.gz", code).rsplit(maxsplit=1)
    assert text == "in progress"
    assert file.startswith(str(tmp_path / "elsewhere"))


def test_a_package_without_init_can_have_installed_and_editable_parts(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "checkout" / "src"
    write(source / "acme" / "jobs" / "__init__.py", "VALUE = 'in progress'")
    packages = environment.site_packages
    write(packages / "acme" / "common.py", "VALUE = 'installed'")
    about = packages / "acme_jobs-1.0.dist-info"
    write(about / "METADATA", "Metadata-Version: 2.1\nName: acme-jobs\nVersion: 1.0\n")
    write(about / "direct_url.json", json.dumps({"dir_info": {"editable": True}}))
    write(about / "RECORD", "_acme.pth,,\n")
    write(about / "top_level.txt", "acme\n")
    write(packages / "_acme.pth", f"{source}\n")
    monkeypatch.setattr(sys, "prefix", str(environment.prefix))
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.syspath_prepend(str(source))
    packed = pack(current_environment(), tmp_path / "job-env.tar.gz")
    assert packed.modules == ("acme.jobs",)
    code = "import acme.jobs, acme.common; print(acme.jobs.VALUE, acme.common.VALUE)"
    assert run(tmp_path / "job-env.tar.gz", code) == "in progress installed"


def test_a_directory_without_init_is_packed_if_the_program_imports_it(
    environment: Environment, tmp_path: Path
) -> None:
    program = write(tmp_path / "project" / "job.py", "from helpers.rules import RULE\n")
    write(tmp_path / "project" / "helpers" / "rules.py", "RULE = 'mine'")
    write(tmp_path / "project" / "notes" / "old.py")
    archive = tmp_path / "job-env.tar.gz"
    assert pack(environment, archive, program).modules == ("helpers.rules", "job")
    assert run(archive, "import job; print(job.RULE)") == "mine"
    program.write_text("def")
    with pytest.raises(ConfigurationError, match=r"job\.py is not a Python program"):
        pack(environment, archive, program)


def test_two_links_to_one_directory_are_both_whole(
    environment: Environment, tmp_path: Path
) -> None:
    write(environment.site_packages / "useful" / "inner" / "__init__.py", "VALUE = 7")
    (environment.site_packages / "alias").symlink_to(environment.site_packages / "useful")
    archive = tmp_path / "job-env.tar.gz"
    pack(environment, archive)
    code = "import alias.inner, useful.inner; print(alias.inner.VALUE, useful.inner.VALUE)"
    assert run(archive, code) == "7 7"


@pytest.mark.parametrize("copies", [False, True])
def test_the_python_that_is_told_is_the_one_that_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: bool
) -> None:
    venv.create(tmp_path / "env", symlinks=not copies)
    python = tmp_path / "env" / "bin" / "python"
    if not copies:
        (tmp_path / "alias").symlink_to(sys.executable)
        python.unlink()
        python.symlink_to(tmp_path / "alias")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    found = current_environment().interpreter
    if copies:
        assert found.is_relative_to(sys.base_prefix)
    else:
        assert found == tmp_path / "alias"


@pytest.mark.parametrize("name", ["a,b.tar.gz", "a#b.tar.gz"])
def test_a_path_that_spark_would_cut_is_refused(
    environment: Environment, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigurationError, match="separator"):
        pack(environment, tmp_path / name)


def test_a_hidden_archive_has_a_name_on_executors(environment: Environment, tmp_path: Path) -> None:
    packed = pack(environment, tmp_path / ".env.tar.gz")
    assert packed.settings["spark.pyspark.python"] == "./env/bin/python"
