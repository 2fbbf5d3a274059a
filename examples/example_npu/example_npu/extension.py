"""What the package adds. Its entry point names this."""

from example_npu.conv_hard_swish import CONV_HARD_SWISH
from example_npu.form import Annotated
from example_npu.gate import GATE
from example_npu.squash import SQUASH
from quantpipe.extend import Extension

EXTENSION = Extension(ops=(GATE, CONV_HARD_SWISH, SQUASH), forms={"example_npu": Annotated})
