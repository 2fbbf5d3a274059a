"""Models that are quantized already: their float model, and their scales and integers."""

from quantpipe.intake.quantized.behind import Behind, behind
from quantpipe.intake.quantized.locate import flat_view
from quantpipe.intake.quantized.real_softmax import with_real_softmax
from quantpipe.intake.quantized.restore import restore, runnable
