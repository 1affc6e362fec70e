"""What a backend declares that it can do: found out by trying, turned into settings, compared with runs (C18, C19).

The declaration itself is a model of ``registry``; what follows for one test is decided in ``selection``.
"""
