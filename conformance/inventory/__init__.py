"""The static picture of a checkout's ``test/``: files, classes, methods, labels, imports (C3, C4).

Reads text and builds tables; never imports torch or a test. What a test *means* for a device is decided in
``selection``.
"""

from conformance.inventory.model import ClassRow, FileRow, Instantiation, Inventory, MethodRow
from conformance.inventory.tree import load_inventory

__all__ = ["ClassRow", "FileRow", "Instantiation", "Inventory", "MethodRow", "load_inventory"]
