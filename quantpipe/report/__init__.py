"""Showing a report: the HTML page for the run folder, the table for the terminal."""

from quantpipe.report.compared import compare_note, compare_page, compared
from quantpipe.report.compatibility import fit_tables
from quantpipe.report.diagnosed import diagnosed
from quantpipe.report.dumped import dump_tables, identified_table, kit_table, times_table
from quantpipe.report.explained import explained
from quantpipe.report.lint import lint_table
from quantpipe.report.page import render_html
from quantpipe.report.terminal_table import summary_table
