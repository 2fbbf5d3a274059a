"""Evaluate: float, simulated and realized model side by side; agreement, accuracy, errors per tensor, latency."""
