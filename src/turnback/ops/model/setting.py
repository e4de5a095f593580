from __future__ import annotations

from turnback.ops.model.view import View


class ConfigRow(View, frozen=True, kw_only=True):
    """A configuration value.

    Attributes:
        key: Its name.
        value: As people write it; stars for a secret.
        origin: Where it comes from: "default", the file's name, the environment variable, "code"
            or "-D".
        doc: What it does.
    """

    key: str
    value: str | None
    origin: str
    doc: str = ""
