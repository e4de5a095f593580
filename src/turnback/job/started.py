"""How the program of a job was started and what it was, kept with every snapshot."""

from __future__ import annotations

import hashlib
import shlex
import sys
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from platform import python_version

import msgspec

from turnback.core.masking import mask_arguments, mask_code, mask_value
from turnback.job.run import Launch

_MOST_TEXT = 1 << 20
_ROOT = "state.checkpoints.dir"


class StartedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program as it was when its driver started; there are stars in place of secrets.

    Attributes:
        command: The whole command; empty if the driver was not started by `turnback run`.
        options: Those of `turnback run` that belong to every start of the job, not only to one
            from a certain snapshot.
        directory: The working directory.
        script: Its path and its arguments; empty if there is none, as in a notebook.
        digest: Of the bytes of the script.
        text: The script; None if it is too large, or not kept here.
        versions: Of Python and of every package that is installed.
    """

    command: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    directory: str = ""
    script: tuple[str, ...] = ()
    digest: str | None = None
    text: str | None = None
    versions: dict[str, str] = {}

    @classmethod
    def of_launch(cls, launch: Launch, root: str) -> StartedProgram:
        """The program that `turnback run` has started, of a job below a root."""
        options = _options(launch, root)
        script = mask_arguments((launch.script, *launch.arguments))
        command = ("turnback", "run", *options, *_options_of_start(launch), *script)
        return cls(
            command=command,
            options=options,
            directory=launch.directory,
            script=script,
            versions=_versions(),
            digest=_digest(launch.script),
            text=_text(launch.script),
        )

    @classmethod
    def of_process(cls, root: str) -> StartedProgram:
        """The program of this process, which was started by other means."""
        main = getattr(sys.modules["__main__"], "__file__", None)
        script = () if main is None else mask_arguments((str(Path(main).absolute()), *sys.argv[1:]))
        return cls(
            options=("--root", root),
            directory=str(Path.cwd()),
            script=script,
            versions=_versions(),
            digest=None if main is None else _digest(main),
            text=None if main is None else _text(main),
        )

    def restore_command(self, snapshot: str) -> str:
        """The command that starts the job from one of its snapshots, as it was started before."""
        run = shlex.join(["turnback", "run", *self.options, "-s", snapshot, *self.script])
        return f"cd {shlex.quote(self.directory)} && {run}" if self.directory else run

    def has_changed(self) -> bool | None:
        """Whether the script is another one now; None if it cannot be read here."""
        if not self.script or self.digest is None:
            return None
        now = _digest(self.script[0])
        return None if now is None else now != self.digest


def _options(launch: Launch, root: str) -> tuple[str, ...]:
    words = ["-d"] if launch.detached else []
    if not root.startswith("memory://"):
        words += ["--root", root]
    if launch.name is not None:
        words += ["--name", launch.name]
    for key, value in launch.settings.items():
        if key != _ROOT:
            words += ["-D", f"{key}={mask_value(key, value)}"]
    return tuple(words)


def _options_of_start(launch: Launch) -> tuple[str, ...]:
    """Options that are about the snapshot it started from."""
    words = [] if launch.start_from is None else ["-s", launch.start_from]
    for old, new in launch.renames.items():
        words += ["--rename", f"{old}={new}"]
    allowed = launch.allow_non_restored_state
    if allowed is True:
        words.append("-n")
    elif allowed:
        words += [word for state in allowed for word in ("--allow", state)]
    if launch.claim_mode is not None:
        words += ["--claim-mode", launch.claim_mode]
    flags = {
        "--fresh": launch.fresh,
        "--fork": launch.fork,
        "--allow-pickled-state": launch.allow_pickled_state,
        "--take-over-sinks": launch.take_over_sinks,
    }
    return (*words, *(flag for flag, given in flags.items() if given))


def _text(script: str) -> str | None:
    try:
        text = Path(script).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return mask_code(text) if len(text) <= _MOST_TEXT else None


def _digest(script: str) -> str | None:
    try:
        return f"sha256:{hashlib.sha256(Path(script).read_bytes()).hexdigest()}"
    except OSError:
        return None


@cache
def _versions() -> dict[str, str]:
    # The attribute reads and parses a file, each time.
    known = (distribution.metadata for distribution in distributions())
    found = {each["Name"]: each["Version"] for each in known if each["Name"]}
    return {"python": python_version(), **dict(sorted(found.items(), key=lambda i: i[0].lower()))}
