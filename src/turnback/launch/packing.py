"""An archive of a Python environment and of a program's modules, for executors elsewhere."""

from __future__ import annotations

import ast
import os
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
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
_SEPARATORS = ",#"


@dataclass(frozen=True)
class Environment:
    """A virtual environment.

    Attributes:
        prefix: Its directory.
        site_packages: Where its packages are, below the prefix.
        interpreter: The Python that it was made with; it is not part of the environment.
        sees_system: Whether packages of that Python can be imported, too.
        editable: The name of every module that is installed as a link to its source, and that. The
            name of one in a package without `__init__.py` has a slash.
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
        editable |= _sources(distribution, site_packages)
    return Environment(
        prefix,
        site_packages,
        _interpreter(prefix),
        sees_system=_sees_system(prefix),
        editable=editable,
        links=frozenset(f.name for d in installed for f in d.files or () if _is_link(f.name)),
    )


def _interpreter(prefix: Path) -> Path:
    """Return the path at which an environment looks for the Python that it was made with."""
    path = prefix / "bin" / "python"
    while path.is_symlink() and path.is_relative_to(prefix):
        path = Path(os.path.normpath(path.parent / path.readlink()))
    if not path.is_relative_to(prefix):
        return path
    # It has a copy, which still needs the other one's library.
    return Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")


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
    if not set(str(target)).isdisjoint(_SEPARATORS):
        raise ConfigurationError(
            f"cannot pack into {target}: Spark takes a comma or a # in a path for a separator"
        )
    try:
        beside = {} if program is None else _beside(program)
        modules = {**environment.editable, **beside}
        entries = dict(_entries(environment, modules))
        total = sum(path.lstat().st_size for path in entries.values())
    except OSError as error:
        raise ConfigurationError(f"cannot read what is to be packed: {error}") from error
    try:
        _write(target, entries, lambda done: progress(done, total))
    except OSError as error:
        raise ConfigurationError(f"cannot write {target}: {error}") from error
    name = target.name.lstrip(".").partition(".")[0]
    return Packed(
        path=str(target),
        bytes=target.stat().st_size,
        files=len(entries),
        python=str(environment.interpreter),
        modules=tuple(sorted(name.replace("/", ".") for name in modules)),
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
        is_left_out = name in environment.links or name.startswith(f"{_DRIVER_ONLY}/")
        if not (is_left_out or _is_replaced(name, modules)):
            yield f"{inside}/{name}", path
    for module, source in sorted(modules.items()):
        if source.is_dir():
            yield from ((f"{inside}/{module}/{name}", path) for name, path in _files(source))
        else:
            yield f"{inside}/{PurePosixPath(module).with_name(source.name)}", source


def _is_replaced(name: str, modules: Mapping[str, Path]) -> bool:
    """Whether a file belongs to a module of which another version is packed."""
    path = PurePosixPath(name.removesuffix(".py"))
    return any(str(part) in modules for part in (path, *path.parents))


def _files(directory: Path, above: frozenset[str] = frozenset()) -> Iterator[tuple[str, Path]]:
    """Yield the name of each file below a directory, and the file.

    Links are followed, but not to a directory that they are in.
    """
    above |= {os.path.realpath(directory)}
    for path in sorted(directory.iterdir()):
        if path.is_file():
            yield path.name, path.resolve()
        elif path.is_dir() and os.path.realpath(path) not in above:
            for name, file in _files(path, above):
                yield f"{path.name}/{name}", file


def _beside(program: Path) -> dict[str, Path]:
    """Return the modules and packages beside a program.

    Of directories without `__init__.py`, which can be anything, only those that it imports.
    """
    try:
        tree = ast.parse(program.read_bytes(), program)
    except SyntaxError as error:
        raise ConfigurationError(f"{program} is not a Python program: {error}") from error
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    found = _modules(program.parent)
    for name in sorted(imported - found.keys()):
        found |= _modules_in(program.parent, name)
    return found


def _modules(directory: Path) -> dict[str, Path]:
    """Return the modules and packages in a directory."""
    found = {}
    for module in iter_modules([str(directory)]):
        package = directory / module.name
        found[module.name] = package if module.ispkg else package.with_suffix(".py")
    return {name: path for name, path in found.items() if path.exists()}


def _all_modules(directory: Path) -> dict[str, Path]:
    """Return the modules and packages in a directory, also in packages without `__init__.py`.

    Such a package can have parts elsewhere, so it is not one of them; the names of its modules have
    a slash.
    """
    found = _modules(directory)
    for name in sorted(path.name for path in directory.iterdir()):
        if name not in found:
            found |= _modules_in(directory, name)
    return found


def _modules_in(directory: Path, name: str) -> dict[str, Path]:
    """Return the modules in a package without `__init__.py`, if there is one of this name."""
    package = directory / name
    if not name.isidentifier() or name == "__pycache__" or not package.is_dir():
        return {}
    if package.is_symlink() or not os.access(package, os.R_OK | os.X_OK):
        return {}
    return {f"{name}/{module}": path for module, path in _all_modules(package).items()}


def _is_editable(distribution: Distribution) -> bool:
    text = distribution.read_text("direct_url.json")
    about: Any = {} if text is None else msgspec.json.decode(text)
    return bool(about.get("dir_info", {}).get("editable"))


def _sources(distribution: Distribution, site_packages: Path) -> dict[str, Path]:
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
            for name, path in _all_modules(Path(line)).items()
        }
    return {
        name: path
        for module in listed.split()
        for name, path in _source(module, site_packages).items()
    }


def _source(module: str, site_packages: Path) -> dict[str, Path]:
    """Return a module with its source; of a package without `__init__.py`, the modules in it."""
    spec = find_spec(module)
    if spec is None:
        return {}
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    if spec.origin is not None:
        return {module: places[0] if places else Path(spec.origin)}
    return {
        f"{module}/{name}": path
        for place in places
        if place.is_dir() and not place.is_relative_to(site_packages)
        for name, path in _all_modules(place).items()
    }


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
