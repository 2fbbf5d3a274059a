"""Files that ship inside the package: the default model, small transformers, and the scripts that made them."""
