"""An archive of a Python environment and of a program's modules, for executors elsewhere."""

from __future__ import annotations

import os
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import msgspec

from turnback.errors import ConfigurationError

Progress = Callable[[int, int], None]
"""Gets the bytes that have been packed, and all that will be."""

SUFFIXES = (".tar.gz", ".tgz")
"""What Spark unpacks as a compressed archive."""

_DRIVER_ONLY = "pyspark/jars"
"""Executors run the jars of their own Spark, which are most of the size of an environment."""
_PYTHON_NAMES = "python*"


@dataclass(frozen=True)
class Environment:
    """A virtual environment.

    Attributes:
        prefix: Its directory.
        site_packages: Where its packages are, below the prefix.
        interpreter: The Python that it was made with; it is not part of the environment.
        sees_system: Whether packages of that Python can be imported, too.
        editable: The name of every module that is installed as a link to its source, and that.
        links: The files that are these links.
    """

    prefix: Path
    site_packages: Path
    interpreter: Path
    sees_system: bool = False
    editable: Mapping[str, Path] = field(default_factory=dict)
    links: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Packed:
    """An archive that was written.

    Attributes:
        path: The archive.
        bytes: Its size.
        files: How many files it has.
        python: The Python that every machine needs at this path.
        modules: Modules of the program and of editable installations, without a directory.
        settings: What makes executors use it.
        warnings: What executors may miss.
    """

    path: str
    bytes: int
    files: int
    python: str
    modules: tuple[str, ...]
    settings: dict[str, str]
    warnings: tuple[str, ...]


def current_environment() -> Environment:
    """Return the environment of this process.

    Raises:
        ConfigurationError: It is none that can be packed.
    """
    prefix = Path(sys.prefix)
    if (prefix / "conda-meta").is_dir():
        raise ConfigurationError(
            f"{prefix} is a conda environment: pack it with conda-pack, which includes the "
            f"interpreter: conda pack --prefix {prefix} --output job-env.tar.gz"
        )
    if sys.prefix == sys.base_prefix:
        raise ConfigurationError(
            f"{sys.executable} is not in a virtual environment. Create one with "
            "`python -m venv job-env`, install your packages there, and run "
            "`job-env/bin/turnback pack`"
        )
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site_packages = prefix / "lib" / version / "site-packages"
    installed = [d for d in distributions(path=[str(site_packages)]) if _is_editable(d)]
    editable: dict[str, Path] = {}
    for distribution in installed:
        editable |= _sources(distribution)
    return Environment(
        prefix,
        site_packages,
        (prefix / "bin" / "python").resolve(),
        sees_system=_sees_system(prefix),
        editable=editable,
        links=frozenset(f.name for d in installed for f in d.files or () if _is_link(f.name)),
    )


def pack(
    environment: Environment,
    target: Path,
    program: Path | None = None,
    progress: Progress = lambda done, total: None,
) -> Packed:
    """Write an archive of an environment, and of the modules beside a program.

    Raises:
        ConfigurationError: It cannot be written, or `target` is not a name that Spark unpacks.
    """
    if not target.name.endswith(SUFFIXES):
        raise ConfigurationError(
            f"cannot pack into {target}: its name has to end in {' or '.join(SUFFIXES)}, by which "
            "Spark knows how to unpack it"
        )
    beside = {} if program is None else _modules(program.parent)
    modules = {**environment.editable, **beside}
    entries = dict(_entries(environment, modules))
    total = sum(path.lstat().st_size for path in entries.values())
    try:
        _write(target, entries, lambda done: progress(done, total))
    except OSError as error:
        raise ConfigurationError(f"cannot write {target}: {error}") from error
    name = target.name.partition(".")[0]
    return Packed(
        path=str(target),
        bytes=target.stat().st_size,
        files=len(entries),
        python=str(environment.interpreter),
        modules=tuple(sorted(modules)),
        settings={
            "spark.archives": f"{target}#{name}",
            "spark.pyspark.python": f"./{name}/bin/python",
        },
        warnings=tuple(_warnings(environment)),
    )


# -- what belongs to it


def _entries(environment: Environment, modules: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """Yield the name of each file in the archive, and the file."""
    prefix = environment.prefix
    for path in sorted((prefix / "bin").glob(_PYTHON_NAMES)):
        yield f"bin/{path.name}", path
    yield "pyvenv.cfg", prefix / "pyvenv.cfg"
    packages = environment.site_packages
    inside = packages.relative_to(prefix).as_posix()
    for name, path in _files(packages):
        replaced = name.partition("/")[0].removesuffix(".py") in modules
        if not (replaced or name in environment.links or name.startswith(f"{_DRIVER_ONLY}/")):
            yield f"{inside}/{name}", path
    for module, source in sorted(modules.items()):
        if source.is_dir():
            yield from ((f"{inside}/{module}/{name}", path) for name, path in _files(source))
        else:
            yield f"{inside}/{source.name}", source


def _files(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name of each file below a directory, and the file; links are followed."""
    seen = set()
    for folder, folders, names in os.walk(directory, followlinks=True):
        seen.add(os.path.realpath(folder))
        folders[:] = sorted(
            name for name in folders if os.path.realpath(Path(folder, name)) not in seen
        )
        for path in (Path(folder, name) for name in sorted(names)):
            if path.is_file():
                yield path.relative_to(directory).as_posix(), path.resolve()


def _modules(directory: Path) -> dict[str, Path]:
    """Return the modules and packages that a program in this directory can import."""
    found = {}
    for module in iter_modules([str(directory)]):
        package = directory / module.name
        found[module.name] = package if module.ispkg else package.with_suffix(".py")
    return {name: path for name, path in found.items() if path.exists()}


def _is_editable(distribution: Distribution) -> bool:
    text = distribution.read_text("direct_url.json")
    about: Any = {} if text is None else msgspec.json.decode(text)
    return bool(about.get("dir_info", {}).get("editable"))


def _sources(distribution: Distribution) -> dict[str, Path]:
    """Return the modules of an editable installation."""
    listed = distribution.read_text("top_level.txt")
    if listed is None:
        # Its build system only adds the directory of its sources to the path.
        return {
            name: path
            for link in distribution.files or ()
            if link.name.endswith(".pth")
            for line in link.read_text().splitlines()
            if Path(line).is_dir()
            for name, path in _modules(Path(line)).items()
        }
    return {name: path for name in listed.split() if (path := _source(name)) is not None}


def _source(module: str) -> Path | None:
    spec = find_spec(module)
    if spec is None:
        return None
    places: Sequence[str] = spec.submodule_search_locations or ()
    return next((Path(place) for place in places), Path(spec.origin) if spec.origin else None)


def _is_link(name: str) -> bool:
    return name.endswith(".pth") or name.startswith("__editable__")


def _sees_system(prefix: Path) -> bool:
    lines = (prefix / "pyvenv.cfg").read_text().lower().splitlines()
    return any(line.replace(" ", "") == "include-system-site-packages=true" for line in lines)


def _warnings(environment: Environment) -> Iterator[str]:
    if environment.sees_system:
        yield (
            f"packages of {environment.interpreter} that the environment can import are not packed"
        )
    for path in sorted(environment.site_packages.glob("*.pth")):
        if path.name in environment.links:
            continue
        for line in path.read_text().splitlines():
            if Path(line).is_absolute():
                yield f"modules in {line}, which {path.name} adds, are not packed"


# -- writing


def _write(target: Path, entries: Mapping[str, Path], progress: Callable[[int], None]) -> None:
    """Write the archive beside its place and then move it there, so that it is whole or absent."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    done = 0
    try:
        with tarfile.open(partial, "w:gz", compresslevel=1) as archive:
            for name, path in entries.items():
                archive.add(path, name, recursive=False, filter=_anonymous)
                done += path.lstat().st_size
                progress(done)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who packed it: elsewhere there is another user of the same number."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
