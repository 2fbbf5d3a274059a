"""Say what each op means for scales.

This is the first of three tables that are joined; the others are hardware files and back-end lowerings.
"""

from quantpipe.oprules.float_ops import FLOAT_OPS
from quantpipe.oprules.rule import NARROWED, Family, OpRule, Winner
from quantpipe.oprules.table import OP_RULES, float_reason, rule_of
