from .conformance import SinkPromiseBroken, SinkReport, check_sink
from .engine import LocalEngine
from .harness import DriverCrash, JobHarness
from .streams import source
from .trial import Promise

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
