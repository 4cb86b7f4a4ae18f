"""The frame of HTML reports: self-contained files for light and dark mode."""

from __future__ import annotations

from html import escape
from typing import Final

_STYLE: Final = """
:root { color-scheme: light dark; --a: #2563eb; --b: #d97706; --c: #16a34a; --d: #9333ea;
--e: #dc2626; --f: #0891b2; --line: #8884; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
h3 { font-size: 1rem; margin-bottom: .3rem; }
.verdict { padding: .6rem 1rem; border-left: 4px solid; background: var(--soft); }
.same { border-color: #16a34a; } .differs { border-color: #dc2626; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; }
tr + tr td { border-top: 1px solid var(--line); } td.number, th.number { text-align: right; }
code { overflow-wrap: anywhere; } .wide { overflow-x: auto; }
.key-a { color: var(--a); } .key-b { color: var(--b); } .key-c { color: var(--c); }
.key-d { color: var(--d); } .key-e { color: var(--e); } .key-f { color: var(--f); }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
svg .grid { stroke: var(--line); } polyline { fill: none; stroke-width: 2; }
polyline.a { stroke: var(--a); } polyline.b { stroke: var(--b); stroke-dasharray: 6 3; }
polyline.c { stroke: var(--c); } polyline.d { stroke: var(--d); stroke-dasharray: 2 3; }
polyline.e { stroke: var(--e); } polyline.f { stroke: var(--f); stroke-dasharray: 8 3 2 3; }
.interval { stroke-width: 6; opacity: .35; }
.interval.a { stroke: var(--a); } .interval.b { stroke: var(--b); }
@media (max-width: 40rem) {
  body { margin: 1rem auto; } svg text { font-size: 15px; }
  .groups tr:first-child { display: none; } .groups td { display: inline; border: 0; }
  .groups tr { display: block; padding: .6rem 0; border-top: 1px solid var(--line); }
  .groups td + td + td { display: block; text-align: left; padding: 0; }
  .groups .number::after { content: " requests"; }
  .captures td { display: block; border: 0; padding: 0; }
}
"""
KEYS: Final = "abcdef"
"""Keys of plotted lines; each has a color."""


def html_page(title: str, body: str) -> str:
    """Return an HTML page with this body."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style>{body}</html>"
    )
