"""Simulate: the integer model's arithmetic in float32, one session for many strategies."""
