"""One folder per backend, data only: ``profile.yaml``, ``registry.yaml``, ``capabilities.yaml``.

Code that knows a backend by name does not belong here or anywhere else in ``conformance``.
"""
