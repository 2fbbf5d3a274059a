"""Configuration files of the package: quantpipe finds them by the entry point `quantpipe.conf`."""
