"""Workloads for MXNet: the built-in networks, the model zoo, symbol files and user code.

Imported in the worker only, under the interpreter that has MXNet.
"""
