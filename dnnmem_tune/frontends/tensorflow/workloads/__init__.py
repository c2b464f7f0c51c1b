"""Workloads for TensorFlow: what to trace when a training step is estimated.

A workload is a function ``build(batch_size, **hyperparameters)``. It returns a compiled Keras
model or a function that runs one training step, and the specification of its inputs.
"""
