"""All tests: nothing is read from, or left in, the statistics cache of whoever runs them."""

from __future__ import annotations

import os

os.environ["QUANTPIPE_CACHE"] = "none"
