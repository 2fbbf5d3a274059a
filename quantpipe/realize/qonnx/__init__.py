"""The QONNX form: real ops with Quant, BipolarQuant and Trunc nodes, as FINN and hls4ml take it."""
