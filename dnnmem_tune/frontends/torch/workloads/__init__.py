"""Workloads: what to run when a training step is recorded, estimated or checked on a real GPU.

A workload is a function ``build(batch_size, device, **hyperparameters)`` that makes the model,
the optimizer and the data, and returns ``step``, which runs one training step. Here are the
built-in ones, the `TrainingStep` that writes such a function for the common case, and the
resolution of references such as ``train.py:build`` or ``hf:config.json``.
"""
