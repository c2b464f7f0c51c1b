"""The second PyTorch recorder: the step is run by the CUDA build itself, on an emulated card.

What PyTorch allocates is not worked out but read from PyTorch's own history of its
allocator, so every temporary, every choice of kernel and every lifetime is that of a real
run. ``client`` is the caller's side; everything else runs in a worker process.
"""
