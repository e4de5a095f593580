from .engine import LocalEngine
from .harness import DriverCrash, JobHarness
from .streams import source

__all__ = ["DriverCrash", "JobHarness", "LocalEngine", "source"]
