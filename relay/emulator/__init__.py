"""A local GitHub for tests and the demo: REST API, webhooks, OIDC issuer, git over HTTP and a workflow runner.

What lives here: only what a GitHub App, a downstream job and ``git`` can see of GitHub. What must not: anything of the
relay itself (the relay is a client of this server, over HTTP) and any behaviour that GitHub does not document.
"""
