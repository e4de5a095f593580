from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnback.config.configuration import Configuration


class ConfigurationEditor:
    """The configuration as it stands while a program sets one thing after the other."""

    def __init__(self, configuration: Configuration) -> None:
        self.current = configuration

    def set(self, settings: Mapping[str, Any]) -> None:
        """Set keys in code: all of them, or none if one cannot be used.

        Raises:
            ConfigurationError: A key is not known, or a value cannot be used.
        """
        self._set(self.current, settings)

    def replace(self, prefix: str, settings: Mapping[str, Any]) -> None:
        """The same, and forget what code had set below this prefix."""
        self._set(self.current.without_code(lambda key: key.startswith(prefix)), settings)

    def _set(self, configuration: Configuration, settings: Mapping[str, Any]) -> None:
        for key, value in settings.items():
            configuration = configuration.with_code(key, value)
        self.current = configuration
