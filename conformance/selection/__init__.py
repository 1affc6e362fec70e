"""Which tests a run takes: labels, inference, restrictions, changed files (C5-C10).

Decisions over plain rows; no torch, no files, no processes. What happens to a taken test is decided in ``registry``.
"""
