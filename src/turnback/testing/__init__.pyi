from .conformance import SinkPromiseBroken, SinkReport, check_sink
from .engine import LocalEngine
from .harness import DriverCrash, JobHarness
from .protocol_run import Promise
from .streams import source

__all__ = [
    "DriverCrash",
    "JobHarness",
    "LocalEngine",
    "Promise",
    "SinkPromiseBroken",
    "SinkReport",
    "check_sink",
    "source",
]
