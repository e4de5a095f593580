"""Every error Turnback raises.

TurnbackError
├── ConfigurationError          an option, a path or a duration that cannot be used
│   └── TableChangedError       the table of a sink was changed, and rows do not fit it any more
├── PlanError                   the program is wrong; found before anything runs
│   └── UnsupportedTypeError    a type that has no serializer
├── ElementTypeError            an element does not fit the declared type of its stream
│   ├── NullKeyError            a key is null
│   └── TooLargeError           elements that do not fit into one Arrow batch
├── StorageError                the storage refused, failed, or did not answer
│   ├── NotFoundError
│   ├── AlreadyExistsError
│   ├── CommitStateUnknownError a write may or may not have happened; repeating it will tell
│   ├── CorruptFileError        length or checksum differ; nothing of the file was used
│   ├── StorageNotSharedError   an executor has another directory where the driver has the job
│   └── FormatVersionError      written by a newer version
├── StateError
│   ├── IncompatibleStateError  stored state does not fit the program
│   └── LocalStoreError         a store on this machine cannot be used; it is only a cache
├── CheckpointError
│   ├── CheckpointNotFoundError
│   ├── CheckpointTimeoutError  discarded, it took too long
│   └── FencedError             a newer attempt of the job has taken over
├── EpochConflictError          two attempts of one task collide; the epoch is replayed
├── SinkError
├── SourceError                 a source cannot be reached or read
│   ├── ChangedFilesError       files were changed after they were read
│   └── MalformedRecordError    a record of a source does not fit its schema
├── UserFunctionError           the user's code raised
├── SparkUnavailableError       Spark's JVM has ended or does not start; a new driver may go on
├── JobNotFoundError            no job of this name, id or directory
├── AmbiguousJobError           several jobs fit
├── JobNotRunningError          no driver serves the job
├── StillNeededError            what is to be removed is needed, or may be
├── JobInUseError               another live driver runs this job
└── JobFailedError              the job ended and will not be restarted
"""

from __future__ import annotations

import msgspec

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError)
"""What msgspec raises for damaged bytes: a text that is not UTF-8 gets none of its own errors."""


class TurnbackError(Exception):
    """Root of all errors raised by Turnback."""


class ConfigurationError(TurnbackError, ValueError):
    """An option, a path or a duration that cannot be used."""


class TableChangedError(ConfigurationError):
    """The table of a sink was changed while its job ran, and rows do not fit it any more."""


class PlanError(TurnbackError, ValueError):
    """The program is wrong; found before anything runs."""


class UnsupportedTypeError(PlanError, TypeError):
    """A type that has no serializer."""


class ElementTypeError(TurnbackError, TypeError):
    """An element does not fit the declared type of its stream."""


class NullKeyError(ElementTypeError):
    """A key is null."""


class TooLargeError(ElementTypeError):
    """Elements that do not fit into one Arrow batch: a column of it holds at most 2 GiB."""


class StorageError(TurnbackError):
    """The storage refused, failed, or did not answer."""


class NotFoundError(StorageError):
    """No file at this path."""


class AlreadyExistsError(StorageError):
    """A file is already at this path."""


class CommitStateUnknownError(StorageError):
    """A write may or may not have happened: its reply was lost, and the storage does not answer.

    Nothing may be concluded from it. The same write again finds out what became of the first.
    """


class CorruptFileError(StorageError):
    """Length or checksum differ from what was recorded; nothing of the file was used."""


class StorageNotSharedError(StorageError):
    """An executor has another directory where the driver has the storage of the job."""


class FormatVersionError(StorageError):
    """The file was written in a format this version cannot read."""


class StateError(TurnbackError):
    """State was used in a way that cannot work."""


class IncompatibleStateError(StateError):
    """Stored state does not fit the program."""


class LocalStoreError(StateError):
    """A store on this machine cannot be opened, read or written; it is only a cache of files."""


class CheckpointError(TurnbackError):
    """A checkpoint could not be taken or read."""


class CheckpointNotFoundError(CheckpointError):
    """No such checkpoint."""


class CheckpointTimeoutError(CheckpointError):
    """The checkpoint took longer than its timeout and was discarded."""


class FencedError(CheckpointError):
    """A newer attempt of the job has taken over; this one may commit nothing."""


class EpochConflictError(TurnbackError):
    """Two attempts of one task were read downstream, or are in each other's way.

    The epoch has to be replayed.
    """


class SinkError(TurnbackError):
    """A sink could not write, commit or recover."""


class SourceError(TurnbackError):
    """A source could not be reached or read."""


class ChangedFilesError(SourceError):
    """Files were changed after a source has read them, and the job is to end then."""


class MalformedRecordError(SourceError):
    """A record of a source does not fit the schema that it is parsed against."""


class UserFunctionError(TurnbackError):
    """The user's code raised."""


class SparkUnavailableError(TurnbackError):
    """Spark's JVM has ended or does not start, or its context was stopped.

    This process can do nothing more for the job; a new one goes on from the latest checkpoint.
    """


class JobNotFoundError(TurnbackError, LookupError):
    """No job of this name, id or directory."""


class AmbiguousJobError(TurnbackError, LookupError):
    """Several jobs match; give more of the name or id."""


class JobNotRunningError(TurnbackError):
    """No driver serves the job, so it takes no requests."""


class StillNeededError(TurnbackError):
    """What is to be removed is needed, or may be; it was left alone."""


class JobInUseError(TurnbackError):
    """Another live driver runs this job."""


class JobFailedError(TurnbackError):
    """The job ended and will not be restarted."""


REPLACED = (FencedError, JobInUseError)
"""Another driver has the job."""

FINAL = (
    ChangedFilesError,
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    FormatVersionError,
    IncompatibleStateError,
    MalformedRecordError,
    PlanError,
    *REPLACED,
)
"""A restart would fail in the same way."""
