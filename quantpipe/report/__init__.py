"""Showing a report: the HTML page for the run folder, the table for the terminal."""

from quantpipe.report.page import render_html
from quantpipe.report.table import summary_table

__all__ = ["render_html", "summary_table"]
