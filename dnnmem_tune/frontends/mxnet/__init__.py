"""The MXNet front-end: a worker binds symbols, and its caller plans their memory as MXNet does.

MXNet 1.9.1 is the last release and needs an old numpy, so it lives in an environment of its
own: only ``worker`` and ``workloads`` are run there, with the standard library and MXNet.
"""
