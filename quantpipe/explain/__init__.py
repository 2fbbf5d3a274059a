"""Explain where a result loses accuracy and which changes regain it: of a run, a strategy or a file of another tool.

`explain` and `explain_file` make the whole report, `diagnosis` a short one for a run that misses its objective. Both
use `inspection` (what costs most), `proposals` (changes) and `advice` (their measured gain).
"""
