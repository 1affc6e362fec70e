"""One file per schema change, named by its number.

A version is never edited once released; the next one corrects it. Nothing else lives here.
"""
