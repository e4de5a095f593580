from turnback.sinks.base import Committer, CommitterContext, Sink, SinkWriter, WriterContext
from turnback.sinks.collect import CollectSink
from turnback.sinks.discard import DiscardSink
from turnback.sinks.files import FileSink
from turnback.sinks.print import PrintSink
from turnback.sinks.two_phase import TwoPhaseCommitSink

__all__ = [
    "CollectSink",
    "Committer",
    "CommitterContext",
    "DiscardSink",
    "FileSink",
    "PrintSink",
    "Sink",
    "SinkWriter",
    "TwoPhaseCommitSink",
    "WriterContext",
]
