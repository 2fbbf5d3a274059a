"""Measure points in this process, in several on this machine, or on several machines.

An executor defines how; `open` gives the workers of one search. Scores come back in the order of the points, and do not
depend on the number of workers.
"""

from quantpipe.scoring.workers.executor import Executor, Workers
from quantpipe.scoring.workers.process import Process
from quantpipe.scoring.workers.ray import Ray
from quantpipe.scoring.workers.serial import Serial
