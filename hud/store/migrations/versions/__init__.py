"""One module per change of the tables, oldest first; a released one is never edited."""
