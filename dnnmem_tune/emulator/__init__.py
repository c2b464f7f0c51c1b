"""An NVIDIA card that need not exist: stub libraries for the CUDA build of PyTorch.

PyTorch itself runs unmodified, with its own allocator, autograd and operator code. The
libraries beneath it are built here, for the installed release, from the sources in ``src``:
kernels do nothing, and memory is bookkeeping against the capacity of the card that is asked for.

``installation`` finds PyTorch, ``stubs`` reads what it asks of its libraries, ``build``
compiles them into a per-user cache, ``card`` says what card to be, ``load`` puts them into
a worker process. Nothing here imports PyTorch.
"""
