"""Where points are measured: in this process, in several on this machine, or on several machines.

An executor says how; `open` gives the workers of one search. Scores come back in the order of the points, and do not
depend on how many workers there are.
"""

from quantpipe.executors.process import Process
from quantpipe.executors.protocol import Executor, ScorerFactory, Workers
from quantpipe.executors.ray import Ray
from quantpipe.executors.serial import Serial

__all__ = ["Executor", "Process", "Ray", "ScorerFactory", "Serial", "Workers"]
