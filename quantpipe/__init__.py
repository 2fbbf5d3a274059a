"""quantpipe: find, check and file the integer version of an ONNX model that a piece of hardware can run."""

__version__ = "0.1.0"
