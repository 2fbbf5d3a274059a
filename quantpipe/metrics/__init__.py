"""Numbers that search and evaluation share: outputs compared with the float model's, intervals, latency."""
