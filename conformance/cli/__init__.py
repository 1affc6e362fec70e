"""The command ``conformance``: one module per command; they parse, call and print, and decide nothing."""

from conformance.cli.app import app, main

__all__ = ["app", "main"]
