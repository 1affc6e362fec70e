"""The dashboard: stores what backends report and says what an upstream pull request does to them.

Nothing here talks to GitHub or to a job; it meets the relay over HTTP only and shares ``relay.wire`` with it.
"""
