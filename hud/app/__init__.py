"""The web server: ingest, JSON and pages over HTTP, and the settings wired to store and queries.

Handlers parse and render only; what is shown is decided in ``hud.queries``, what is stored in ``hud.store``.
"""

from hud.app.factory import create_app

__all__ = ["create_app"]
