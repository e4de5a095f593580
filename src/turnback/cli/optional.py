"""Options whose value may be left out, as in Flink: `cancel -s JOB`, `cancel -s DIR JOB`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperArgument, TyperOption

from turnback.cli.quick import QuickCommand

OPTIONAL = "[DIR]"
"""Metavar that marks such an option."""


class OptionalValueCommand(QuickCommand):
    """A command with options whose value may be left out; what is passed then is ''.

    The word behind such an option is its value, unless the command would then be short of an
    argument that it needs.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write every value out, then parse as usual."""
        return super().parse_args(ctx, self._written_out(args))

    def _written_out(self, args: Sequence[str]) -> list[str]:
        words = self._words(args)
        needed = sum(isinstance(p, TyperArgument) and bool(p.required) for p in self.params)
        have = sum(kind == "argument" for kind, _ in words)
        out: list[str] = []
        for position, (kind, word) in enumerate(words):
            out.append(word)
            if kind != "optional":
                continue
            follows = words[position + 1 :][:1]
            if have > needed and follows and follows[0][0] == "argument":
                have -= 1
            else:
                out.append("")
        return out

    def _words(self, args: Sequence[str]) -> list[tuple[str, str]]:
        """Every word with what it is: option, value, optional (one without a value), argument."""
        valued, optional = self._names()
        words: list[tuple[str, str]] = []
        rest = iter(args)
        for word in rest:
            if word == "--":
                words += [("option", word), *(("argument", w) for w in rest)]
            elif word in optional:
                words.append(("optional", word))
            elif word in valued:
                words.append(("option", word))
                words += [("value", value) for value in [next(rest, None)] if value is not None]
            elif word.startswith("-") and word != "-":
                words.append(("option", word))
            else:
                words.append(("argument", word))
        return words

    def _names(self) -> tuple[set[str], set[str]]:
        """The names of the options that take a value, and of those that may."""
        valued: set[str] = set()
        optional: set[str] = set()
        for param in self.params:
            if isinstance(param, TyperOption) and not param.is_flag:
                names = optional if param.metavar == OPTIONAL else valued
                names.update(param.opts)
        return valued, optional
