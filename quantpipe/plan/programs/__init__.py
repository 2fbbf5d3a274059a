"""Functions of rows as integer programs: one module per function, joined by op and kind in `table.py`."""

from quantpipe.plan.programs.function_programs import PROGRAMS, plan_program
