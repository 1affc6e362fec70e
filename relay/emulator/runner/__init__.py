"""Runs workflow files: expressions, the file's model, workflow commands, actions, jobs as real processes.

What lives here: GitHub's documented workflow semantics; a construct that is not emulated is an error that names it.
What must not: HTTP routes, and anything that knows which workflow it runs.
"""
