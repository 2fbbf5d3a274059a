"""Models that are quantized already: their float model, and their scales and integers."""

from quantpipe.graph.quantized.behind import Behind, behind
from quantpipe.graph.quantized.locate import flat_view
from quantpipe.graph.quantized.real_softmax import with_real_softmax
from quantpipe.graph.quantized.restore import restore, runnable
