"""A figure of matplotlib as SVG in a page: text stays text, colours follow the page, nothing refers to the outside."""

from __future__ import annotations

import html
import io
import logging
import re
import threading
from collections.abc import Sequence
from typing import Any

INK, QUIET, LINE, MARK, BAD, PAGE = "#010203", "#5d6873", "#dfe3e8", "#2563b8", "#a3161a", "#fefeff"
"""Stand for the colours of the page, light or dark."""
FLOAT, WIDE, NARROW = "#9a6200", "#0b8071", "#7c3aed"
"""The same on both: real numbers, integers of more than 8 bits, integers of fewer."""
_THEME = {
    INK: "var(--ink)", QUIET: "var(--quiet)", LINE: "var(--line)", MARK: "var(--mark)", BAD: "var(--bad)",
    PAGE: "var(--page)",
}  # fmt: skip
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "quantpipe",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": QUIET,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "path.simplify": True,
}
_lock = threading.Lock()
"""matplotlib's style is one for the whole process."""

_HEAD = re.compile(r"^.*?(?=<svg)", re.S)
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.S)
_FONTS = re.compile(r" ?font-family: [^;\"]*;?")
"""A list of names in every text; without it they have the font of the page."""
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_ID = re.compile(r' id="([^"]+)"')
_USED = re.compile(r'(?:url\(#|href="#)([^")]+)')


class Canvas:
    """A figure that is being drawn; `svg` gives it as text. Use it as a context, inside which matplotlib has our style.

    Args:
        width: In inches of 72 points; a page is about 9 wide.
        height: Likewise.
        label: What it shows, for those who cannot see it.
        rows: Panels below each other.
    """

    def __init__(self, width: float, height: float, label: str, rows: int = 1, **layout: Any) -> None:
        self.label, self.rows, self._size, self._layout = label, rows, (width, height), layout
        self.titles: dict[str, Sequence[str]] = {}
        """Of a collection with this `gid`: what each of its marks says when a pointer rests on it."""

    def __enter__(self) -> Canvas:
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        _lock.acquire()
        self._context = mpl.rc_context(_STYLE)
        self._context.__enter__()
        self.figure = Figure(figsize=self._size)
        FigureCanvasSVG(self.figure)
        panels = self.figure.subplots(self.rows, 1, squeeze=False, **self._layout)
        self.axes: list[Any] = [row[0] for row in panels]
        return self

    def __exit__(self, *_: object) -> None:
        self._context.__exit__(None, None, None)
        _lock.release()

    def svg(self) -> str:
        """Return the figure as an `<svg>` element."""
        stream = io.StringIO()
        # The box is asked for here: "tight" would draw the whole figure once more to find it.
        box = self.figure.get_tightbbox().padded(0.04)
        self.figure.savefig(stream, format="svg", metadata={"Date": None}, bbox_inches=box)
        text = _HEAD.sub("", stream.getvalue(), count=1)
        text = _COMMENT.sub("", _METADATA.sub("", text))
        text = _FONTS.sub("", text)
        for name, titles in self.titles.items():
            text = _titled(text, name, titles)
        text = _plain_ids(text)
        for colour, variable in _THEME.items():
            text = text.replace(colour, variable)
        return re.sub(
            r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>",
            lambda found: f'<svg {found[1]} role="img" aria-label="{html.escape(self.label)}">',
            text,
            count=1,
        ).strip()


def _titled(text: str, name: str, titles: Sequence[str]) -> str:
    """Return the figure with a title in each mark of a group, in their order."""
    begin = text.find(f'<g id="{name}">')
    if begin < 0:
        return text
    end = text.find('<g id="', begin + 1)  # groups within have no ids
    end = len(text) if end < 0 else end
    parts = iter(titles)
    marks = re.sub(
        r"<use ([^>]*)/>",
        lambda found: f"<use {found[1]}><title>{html.escape(next(parts, ''))}</title></use>",
        text[begin:end],
    )
    return text[:begin] + marks + text[end:]


def _plain_ids(text: str) -> str:
    """Return the figure without unused ids: a page has several figures, and an id must be unique in it."""
    used = set(_USED.findall(text))
    return _ID.sub(lambda found: found[0] if found[1] in used else "", text)


def shortened(name: str, limit: int = 28) -> str:
    """Return a name that fits next to an axis: its end, which is more specific than its beginning."""
    return name if len(name) <= limit else f"…{name[1 - limit :]}"
