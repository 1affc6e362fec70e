"""Brings an upstream tree and keeps it: ``git`` by tag or commit, ``debian`` by source package, ``store`` makes it
safe.

No host name stands here: repositories are given, package sources are the machine's own.
"""
