"""ONNX: a model that exists only as a file, for inference and for training.

Reading a file runs none of the user's code, so that this front-end needs no worker process. It needs
the package ``onnx`` and no framework.
"""
