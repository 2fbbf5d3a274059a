"""Numbers that search and evaluation share: outputs beside the float model's, intervals, latency."""
