"""Files that ship inside the package: the default model, two small transformers, and the scripts that made them."""
