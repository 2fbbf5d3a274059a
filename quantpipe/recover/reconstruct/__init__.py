"""Reconstruct layers: find integer weights and biases that give back a layer's float output.

The method is GPTQ on second moments of the layer's input.
"""
