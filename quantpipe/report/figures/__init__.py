"""Draw the figures of a report by matplotlib as SVG inside the page itself.

matplotlib is imported when the first figure is drawn, and by no other module.
"""

from quantpipe.report.figures.all import drawn
