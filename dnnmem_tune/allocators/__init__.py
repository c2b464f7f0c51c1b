"""Simulations of GPU memory allocators: what they reserve and where they run out of memory.

Pure Python and no framework. ``replay`` applies a trace's events to a ``CachingAllocator``
(PyTorch's) or an ``ExactAllocator`` (a lower bound).
"""
