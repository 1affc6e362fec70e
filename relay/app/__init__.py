"""The running relay: settings, HTTP endpoints, workers, sweeper, logs and metrics, wired together.

What lives here: FastAPI, asyncio tasks, and the order in which core, store and adapters are called. What must not:
rules that a test would want to check without a server; those belong to ``relay.core``.
"""
