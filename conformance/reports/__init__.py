"""From events to what people and programs read: accounts, JSON lines, JUnit, summaries, progress.

Nothing here starts a process or decides about a test.
"""
