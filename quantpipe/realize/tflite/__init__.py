"""Write a plan as a .tflite file with its own integers and scales, and run it by LiteRT."""
