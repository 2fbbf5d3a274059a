"""Recurrent layers (LSTM, GRU, RNN) as the products and functions that their steps are made of, in a row or a loop."""

from quantpipe.intake.rewrites.recurrent.layer import CELLS, PARTS
from quantpipe.intake.rewrites.recurrent.layout import time_first
from quantpipe.intake.rewrites.recurrent.loop import looped, weights_outside
from quantpipe.intake.rewrites.recurrent.unroll import MOST_STEPS, unrolled
