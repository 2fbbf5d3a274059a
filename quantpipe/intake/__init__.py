"""Models as users have them: ONNX and .tflite files, quantized or not, read, checked, and cleaned into a `Graph`."""
