"""Files that ship inside the package: the default model, and the script that made it."""
