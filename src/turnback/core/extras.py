"""Optional packages: imported when they are needed, and named when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from turnback.errors import ConfigurationError


def require(module: str, extra: str, wanted_by: str) -> Any:
    """Import a module that an extra of Turnback installs.

    Args:
        module: The module, such as "confluent_kafka" or "deltalake.transaction".
        extra: The extra that installs it.
        wanted_by: What needs it, as users know it: "KafkaSink".

    Raises:
        ConfigurationError: It is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        install = f"pip install 'turnback[{extra}]'"
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise ConfigurationError(f"{wanted_by} needs {package}: {install}") from error
        raise ConfigurationError(
            f"{wanted_by} needs {module}, which is installed but cannot be imported: {error}. "
            f"Install the version that Turnback requires: {install}"
        ) from error
