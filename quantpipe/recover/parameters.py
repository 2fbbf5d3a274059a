"""Names that the parameters of recovery's steps share."""

KEY = "recover.steps"
SEARCHED = ("gptq", "coordinate_descent")
"""Roundings that look at a layer's output error."""

AUTO = "auto"
