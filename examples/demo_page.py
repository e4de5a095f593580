"""The demo's story as one self-contained page: a timeline and the counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from demo_truth import Counts

LANES = {"v1": "version 1", "v2": "version 2", "v3": "version 3, A/B test"}
WIDTH, LANE, LEFT = 860, 64, 150

STYLE = """
:root { --ink: #1d2433; --soft: #667085; --paper: #ffffff; --card: #f6f7f9; --line: #d7dbe2;
        --v1: #5b6c8f; --v2: #1f7a5c; --v3: #9a5b13; --paid: #c2553a; --save: #7a3db8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7eaf0; --soft: #9aa4b5; --paper: #14171d; --card: #1c2028; --line: #343a46;
          --v1: #8fa3cc; --v2: #4cc49a; --v3: #e0a04f; --paid: #f08a6c; --save: #c08cf5; } }
* { box-sizing: border-box }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; color: var(--ink);
       background: var(--paper) }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1rem 4rem }
h1 { font-size: 1.7rem; margin: 0 0 .3rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
p { color: var(--soft); margin: .2rem 0 } figure { margin: 0; overflow-x: auto;
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem }
svg { display: block; min-width: 640px; width: 100%; height: auto;
      font: 13px system-ui, sans-serif }
text { fill: var(--ink) } .soft { fill: var(--soft) } .axis { stroke: var(--line) }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line) }
th:first-child, td:first-child { text-align: left } th { color: var(--soft); font-weight: 600 }
"""


@dataclass(frozen=True)
class Run:
    """One life of a version: from when to when, and how it ended."""

    version: str
    started: float
    ended: float
    how: str


def page(
    runs: Sequence[Run],
    saved: float,
    counts: Mapping[str, Counts],
    scores: Mapping[str, int],
    tried: Mapping[str, int],
) -> str:
    """The whole page.

    Args:
        runs: What ran when.
        saved: When the savepoint was taken.
        counts: Of every post, by version 2.
        scores: Engagement of every paid post by version 2, and
        tried: by version 3.
    """
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Turning back time</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{STYLE}</style></head><body><main>
<h1>Turning back time</h1>
<p>Version 1 ran, was killed, and went on. Two other versions were started from the savepoint taken
when paid posts were launched: they kept all totals from before and counted anew since.</p>
<h2>What ran when</h2><figure>{_timeline(runs, saved)}</figure>
<h2>Views per post, by version 2</h2><figure>{_bars(counts)}</figure>
<h2>Engagement of paid posts, A against B</h2><figure>{_scores(scores, tried)}</figure>
</main></body></html>
"""


def _timeline(runs: Sequence[Run], saved: float) -> str:
    begin, end = min(r.started for r in runs), max(r.ended for r in runs)
    scale = (WIDTH - LEFT - 20) / max(end - begin, 1)
    lanes = list(LANES)
    height = LANE * len(lanes) + 20

    def x(at: float) -> float:
        return LEFT + (at - begin) * scale

    def y(version: str) -> float:
        return 30 + LANE * lanes.index(version)

    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Timeline">']
    for version, name in LANES.items():
        middle = y(version) + 13
        parts.append(f'<text x="0" y="{middle + 4}">{escape(name)}</text>')
        parts.append(
            f'<line class="axis" x1="{LEFT}" x2="{WIDTH - 20}" y1="{middle}" y2="{middle}"/>'
        )
    at, top = x(saved), y("v1") + 13
    for version in ("v2", "v3"):
        first = min(r.started for r in runs if r.version == version)
        target = y(version) + 13
        parts.append(
            f'<path d="M{at:.1f},{top} Q{at:.1f},{target} {x(first):.1f},{target}" fill="none"'
            ' stroke="var(--save)" stroke-width="2" stroke-dasharray="5 4"/>'
        )
    for run in runs:
        wide = max((run.ended - run.started) * scale, 4)
        parts.append(
            f'<rect x="{x(run.started):.1f}" y="{y(run.version)}" width="{wide:.1f}" height="26" '
            f'rx="6" fill="var(--{run.version})"/>'
        )
        parts.append(
            f'<text class="soft" x="{x(run.started):.1f}" y="{y(run.version) + 42}">'
            f"{escape(run.how)}, {run.ended - run.started:.0f} s</text>"
        )
    parts.append(
        f'<path d="M{at:.1f},{top - 22} l9,9 l-9,9 l-9,-9 z" fill="var(--save)"/>'
        f'<text x="{at:.1f}" y="{top - 28}" text-anchor="middle">savepoint</text>'
    )
    return "".join(parts) + "</svg>"


def _bars(counts: Mapping[str, Counts]) -> str:
    most = max((c[0] + c[2] for c in counts.values()), default=1)
    step, scale = 38, (WIDTH - LEFT - 120) / most
    height = step * len(counts) + 34
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Views per post">']
    for i, (post, (organic, _, paid, _)) in enumerate(sorted(counts.items())):
        at = 30 + i * step
        first, second = organic * scale, paid * scale
        parts.append(f'<text x="0" y="{at + 16}">{escape(post)}</text>')
        parts.append(
            f'<rect x="{LEFT}" y="{at}" width="{first:.1f}" height="22" rx="3" fill="var(--v2)"/>'
            f'<rect x="{LEFT + first + 2:.1f}" y="{at}" width="{second:.1f}" height="22" rx="3" '
            'fill="var(--paid)"/>'
            f'<text class="soft" x="{LEFT + first + second + 10:.1f}" y="{at + 16}">'
            f"{organic:,} + {paid:,}</text>"
        )
    parts.append(
        f'<rect x="{LEFT}" y="4" width="12" height="12" rx="3" fill="var(--v2)"/>'
        f'<text x="{LEFT + 18}" y="15">organic</text>'
        f'<rect x="{LEFT + 90}" y="4" width="12" height="12" rx="3" fill="var(--paid)"/>'
        f'<text x="{LEFT + 108}" y="15">paid</text></svg>'
    )
    return "".join(parts)


def _scores(scores: Mapping[str, int], tried: Mapping[str, int]) -> str:
    rows = "".join(
        f"<tr><td>{escape(post)}</td><td>{scores[post]}</td><td>{tried.get(post, 0)}</td></tr>"
        for post in sorted(scores)
    )
    head = "<tr><th>post</th><th>version 2</th><th>version 3</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"
