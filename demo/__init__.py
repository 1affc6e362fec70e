"""``make demo``: the whole loop on one machine, and nothing that a deployment needs.

What lives here: starting the services, making an upstream repository with two pull requests, telling what came of them.
What must not: anything that the relay, the HUD, the emulator or the conformance runner would have to know about.
"""
