"""Writing graphs from plans: the walk that every output form shares, and the fragments that several of them use."""

from quantpipe.lowering.lower import Context, Dialect, Lowering, Rendered, opset_for, render
