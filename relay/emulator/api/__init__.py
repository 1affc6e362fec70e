"""The routes, one module per chapter of GitHub's REST documentation, plus ``control`` (ours) and ``pages`` (HTML).

What lives here: request checks, permissions, response shapes. What must not: workflow semantics or git plumbing.
"""
