"""Scripts that made the models that ship inside the package (`quantpipe/assets`); they need the extra `train`."""
