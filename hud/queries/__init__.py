"""What pages, badges and the API show: each question is one function that reads the store and returns a typed context.

HTML and JSON are two renderings of the same context, so two places can never disagree. Nothing here writes.
"""
