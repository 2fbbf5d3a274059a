"""Layer-wise reconstruction: integer weights and biases that give back
a layer's float output (GPTQ on second moments).
"""
