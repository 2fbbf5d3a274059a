"""Hardware files: loading, the schemas a device can run, which nodes it takes, what they cost."""
