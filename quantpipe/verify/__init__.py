"""Verify: a checker of certificates that shares no code with what makes them.

It reads certificate.json, plan.json and the model file of a run folder, and recomputes every claim. Claims are digests,
bounds from the integer weights, multipliers from scales, every step of each requantization, every entry of each table.
It needs NumPy and the ONNX file format, no runtime, and nothing of quantpipe's planner, simulator or
realizer. A check raises `Wrong`, naming the place and what is there. `where` is a kernel, as these errors name it.
"""

from quantpipe.verify.check import Verdict, verify_folder
