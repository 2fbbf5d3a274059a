"""Write a plan as one C99 file: weights, integer kernels, no allocation."""
