"""What an attempt runs, written down for those who look at the job."""

import msgspec


class ProgramOperator(msgspec.Struct, frozen=True, kw_only=True):
    """An operator of the program.

    Attributes:
        uid: Its identity.
        name: What people call it.
        kind: What it does.
        parallelism: Number of instances; None for a source that Spark reads as it likes.
        level: The stage it runs in; -1 for what Spark does alone.
        key: What its input is keyed by, for people.
        inputs: Uids of the operators it reads from.
    """

    uid: str
    name: str
    kind: str
    parallelism: int | None
    level: int
    key: str | None = None
    inputs: tuple[str, ...] = ()


class ProgramSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration value the attempt runs with; a secret's value is never written."""

    key: str
    value: str
    origin: str


class JobProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program and how it is run.

    Attributes:
        attempt: The attempt that runs it.
        operators: In the order data flows.
        settings: Its configuration.
        max_parallelism: Number of key groups.
        warnings: What the planner had to say.
        versions: Of Turnback, Spark and Python.
        script: The program and its arguments, if it was started with `turnback run`.
    """

    attempt: int
    operators: tuple[ProgramOperator, ...]
    settings: tuple[ProgramSetting, ...] = ()
    max_parallelism: int = 128
    warnings: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    script: tuple[str, ...] = ()
