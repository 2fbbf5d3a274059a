"""ONNX graphs: viewing, editing, building, storing and running them."""
