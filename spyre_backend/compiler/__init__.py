"""What turns PyTorch's graphs into programs of the card: ``inductor`` for ``torch.compile``.

No program is stored or launched here, and importing this package imports neither Dynamo nor Inductor.
"""
