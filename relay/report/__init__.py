"""The job's side of the relay: ``relay report`` reads the CI's environment and sends one callback.

What lives here: environment, result files, the HTTP client. What must not: anything of the server; this package needs
the ``report`` extra only, no database and no FastAPI.
"""
