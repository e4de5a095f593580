"""What counts when several layers speak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turnback.config.layer import Layer, Setting
from turnback.coordinator.restart_options import RESTART_TYPE, restart_kind

_EITHER_OR = (("savepoints.schedule.interval", "savepoints.schedule.cron"),)


def resolve(layers: Sequence[Layer]) -> dict[str, Setting]:
    """Return the settings that count, by key.

    Args:
        layers: The one that wins comes last.
    """
    merged: dict[str, Setting] = {}
    for layer in layers:
        for keys in _EITHER_OR:
            if any(key in layer for key in keys):
                for key in keys:
                    merged.pop(key, None)
        merged.update(layer)
    chosen = _restart_type(layers)
    if chosen is None:
        return merged
    merged[RESTART_TYPE] = chosen
    return {k: s for k, s in merged.items() if restart_kind(k) in (None, chosen.text)}


def _restart_type(layers: Sequence[Layer]) -> Setting | None:
    """The highest layer that says anything of restarts says which strategy it is.

    Either by name, or because all its keys are about one. The keys of the other strategies, in
    the layers below, then mean nothing.
    """
    kinds: set[str] = set()
    for layer in reversed(layers):
        named = layer.get(RESTART_TYPE)
        if named is not None and (not kinds or named.text in kinds):
            return named
        about = {kind: key for key in layer if (kind := restart_kind(key)) is not None}
        if not kinds and len(about) == 1:
            ((kind, key),) = about.items()
            return replace(layer[key], text=kind)
        kinds = kinds or set(about)
    return None
