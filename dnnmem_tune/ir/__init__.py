"""The intermediate representation: what a training step allocates and frees, in order.

Nothing here knows a framework, an allocator or a device.
"""
