"""A plug-in package for quantpipe: three ops of an invented NPU, and the form of model that its compiler reads."""
