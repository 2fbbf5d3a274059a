"""Score candidates of a search: plan a point, run its integers, compare its outputs, count its cost."""
