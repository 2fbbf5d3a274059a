"""ONNX graphs: reading, viewing, cleaning, building and running them."""
