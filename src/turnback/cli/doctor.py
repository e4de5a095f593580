"""`turnback doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from turnback.cli import packages, places
from turnback.cli.context import Cli
from turnback.cli.exit import ExitCode
from turnback.cli.finding import Finding
from turnback.cli.output import Value
from turnback.cli.verb import Panel, Verb
from turnback.core.errors import ConfigurationError

if TYPE_CHECKING:
    from turnback.config.configuration import Configuration


def doctor(cli: Cli) -> ExitCode | None:
    """Look whether everything that jobs need is there.

    Python, Java, Spark, the configuration, the directories of checkpoints and savepoints, room on
    the disks, and the port of the dashboard. Ends with code 10 if jobs could not run.
    """
    findings = list(_findings(cli))
    if cli.json:
        cli.out.document({"ok": not _failed(findings), "findings": findings})
    else:
        rows: list[list[Value]] = [
            [cli.out.state(f.verdict), f.name, f.found, f.advice] for f in findings
        ]
        cli.out.table(("verdict", "what", "found", "what to do"), rows)
    return ExitCode.PROBLEM if _failed(findings) else None


def _failed(findings: list[Finding]) -> bool:
    return any(finding.verdict == "fail" for finding in findings)


def _findings(cli: Cli) -> Iterator[Finding]:
    yield packages.look_at_python()
    yield packages.look_at_java()
    yield from packages.look_at_packages()
    try:
        configuration, options, root = cli.configuration, cli.storage_options, cli.root
    except ConfigurationError as error:
        yield Finding("configuration", "fail", str(error), "correct it, then run doctor again")
        return
    yield _look_at_configuration(configuration)
    yield places.look_at_place("jobs", root, options)
    yield _look_at_savepoints(configuration, options)
    yield from places.look_at_temporary(configuration.value("state.backend.local-dir"))
    yield places.look_at_port(configuration.value("web.address"), configuration.value("web.port"))


def _look_at_configuration(configuration: Configuration) -> Finding:
    origins = sorted({entry.origin for entry in configuration.entries() if entry.is_set})
    found = f"set in {', '.join(origins)}" if origins else "nothing is set, all defaults"
    return Finding("configuration", "ok", found)


def _look_at_savepoints(configuration: Configuration, options: dict[str, str]) -> Finding:
    directory = configuration.value("state.savepoints.dir")
    if directory is None:
        return Finding(
            "savepoints",
            "warn",
            "state.savepoints.dir is not set",
            "set it, or give a directory with every savepoint",
        )
    return places.look_at_place("savepoints", directory, options)


VERB = Verb(
    "doctor",
    doctor,
    Panel.TOOLS,
    examples=("turnback doctor", "turnback doctor --root s3://bucket/jobs --json"),
)
