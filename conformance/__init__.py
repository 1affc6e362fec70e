"""Selects, runs and accounts for upstream PyTorch tests on an out-of-tree device.

Command line in ``cli``; everything about one backend is data in ``profiles``. Nothing here imports a backend, and only
``runner.worker``, ``runner.plugin``, ``runner.probe`` and ``suite`` import torch.
"""
