"""Which nodes stay in float before anything is searched, by what ranges and measurements say (`precision=auto`)."""

from quantpipe.scoring.precision.float_moves import PrecisionMove, moves_of, named, raised_moves, range_moves
from quantpipe.scoring.precision.ranges import FindingKind, RangeFinding, findings_of, outliers_of, readers_of
from quantpipe.scoring.precision.selection import Selection
