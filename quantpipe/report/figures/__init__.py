"""The figures of a report, drawn by matplotlib as SVG that stands in the page itself.

matplotlib is imported when the first figure is drawn, and by no other module.
"""

from quantpipe.report.figures.all import Drawn, drawn

__all__ = ["Drawn", "drawn"]
