"""Writing graphs from plans: the walk that every output form shares, and the fragments that several of them use."""

from quantpipe.lowering.context import Context, Dialect, Lowering, Rendered, opset_for
from quantpipe.lowering.lower import render
