"""PyTorch: a training step recorded on fake tensors, in a process of its own.

This module imports no framework. Inside the worker, torch is made to believe in a CUDA
device that does not exist; the caller's own torch is never touched.
"""
