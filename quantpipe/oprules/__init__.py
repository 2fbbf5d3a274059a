"""What each op means for scales: the first of the three joined tables (the others: hardware files, back-end
lowerings)."""

from quantpipe.oprules.rule import Family, OpRule, Winner
from quantpipe.oprules.table import OP_RULES, rule_of

__all__ = ["OP_RULES", "Family", "OpRule", "Winner", "rule_of"]
