"""Lists of skipped tests that other projects keep → rules of ours.

One module per format reads it into entries; ``cluster`` says the same in fewer rules; nothing here writes a file.
"""
