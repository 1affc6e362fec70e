"""The protocol without I/O: verify, decide, transition, as pure functions over plain data.

What lives here: everything that can be right or wrong without a network, a clock or a database (the time is an
argument). What must not: imports of the store, the adapters, the app, or any library that opens a connection.
"""
