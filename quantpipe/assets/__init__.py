"""Files that ship inside the package: the default model, small transformers, a detector, and schemas for editors."""
