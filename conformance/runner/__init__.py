"""Runs tests in supervised worker processes and accounts for every one (C20-C23, C26-C28).

``supervisor`` (no torch) starts ``worker`` processes (pytest with ``plugin``), copies of ``preload``'s by way of
``forkserver``; they meet only in ``spec`` and ``journal``.
"""
