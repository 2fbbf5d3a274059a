"""Conformance: vectors to hold a device or a simulator against, what its dumps differ by, and what explains that.

Takes a plan, golden inputs and dumps of integers; gives sets of vectors, the first tensor that differs, and the field
of the hardware file that would make it so.
"""
