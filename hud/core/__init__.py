"""Decisions as pure functions over plain data: outcomes and their sums, snapshots, diffs, verdicts, fingerprints.

No SQL, no HTTP, no clock and no settings here; everything comes in as an argument.
"""
