"""Dry runs: the user's own, unmodified program on an emulated card.

The command is started as it stands, with one folder in front of ``PYTHONPATH``: its
``sitecustomize`` waits for ``import torch`` and puts the stub libraries beneath it. So it
reaches every process that the command starts: launchers, ranks, spawned workers. ``launch`` is the
caller's side, ``inside`` runs in the user's processes, ``outcome`` is what they tell.
"""
