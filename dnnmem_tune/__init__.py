"""GPU memory of a training job, before it runs."""
__version__ = "0.1.0"
