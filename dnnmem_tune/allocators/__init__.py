"""Deterministic simulations of the GPU allocators of the frameworks."""
