"""Sources and sinks, a room for each system, and how records are read and written."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
