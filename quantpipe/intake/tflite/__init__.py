"""TensorFlow Lite: the tables of its operators for both directions, and the intake of its files as ONNX.

`realize/tflite` writes such files. `read_tflite` reads them: the graph in ONNX's ops, with the file's integers and
scales as QuantizeLinear and DequantizeLinear.
"""
