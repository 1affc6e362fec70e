"""Rules about tests: what to expect, what not to run, and why (C12-C16).

YAML in, matched rules out. No test is run here and no backend is known by name.
"""
