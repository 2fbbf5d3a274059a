"""Training of quantized models: everything of the package that uses torch."""
