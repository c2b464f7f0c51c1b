"""From a graph to the events of its step: an order of execution, and who owns memory when.

Pure Python and no framework. ``schedule`` orders a graph's operators, ``storages`` decides
which tensors share memory and when it is taken and given back, ``lower`` makes the trace.
"""
