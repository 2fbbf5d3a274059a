"""The VTA form: a plan as instruction streams of the Versatile Tensor Accelerator, and what executes exactly these."""
