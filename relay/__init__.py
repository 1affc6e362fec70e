"""The Cross-Repository CI Relay: upstream events out, verified downstream results back.

What lives here: the protocol core without I/O, the store, the adapters and the app that wires them; ``relay.wire``
holds the models that other parts may import. What must not: anything that knows the HUD's pages, the conformance
runner or a backend.
"""
