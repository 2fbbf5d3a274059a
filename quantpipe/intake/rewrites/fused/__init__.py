"""Ops of onnxruntime that do the work of several ops of ONNX, written as these when a model is loaded.

onnxruntime's optimizer writes such ops into the files that it saves, and its model builders do, too.
"""

from quantpipe.intake.rewrites.fused.past_axes import settle_pasts
from quantpipe.intake.rewrites.fused.written_out import FUSED, fused_written_out, refuse_undefined
