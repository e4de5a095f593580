from .base import Committer, CommitterContext, Sink, SinkWriter, TransactionInfo, WriterContext
from .idempotent import IdempotentSink
from .memory import CollectSink, DiscardSink, PrintSink
from .two_phase import TwoPhaseCommitSink
from .write_ahead import StagedOutput, WriteAheadSink

__all__ = [
    "CollectSink",
    "Committer",
    "CommitterContext",
    "DiscardSink",
    "IdempotentSink",
    "PrintSink",
    "Sink",
    "SinkWriter",
    "StagedOutput",
    "TransactionInfo",
    "TwoPhaseCommitSink",
    "WriteAheadSink",
    "WriterContext",
]
