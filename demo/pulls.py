"""The two pull requests that the demo opens against upstream, as edits of files of the tree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from demo.services import DemoError

BUNDLED_TREE = Path(__file__).parent / "tree"
"""A small tree of our own, for machines that can reach neither git nor a source package."""


@dataclass(frozen=True)
class Edit:
    """One change of one file.

    Attributes:
        path: the file, from the tree's root.
        after: a line of the file that occurs once; the change goes below it.
        insert: the new lines.
    """

    path: str
    after: str
    insert: str

    def apply(self, text: str) -> str:
        """The file with the change.

        Raises:
            DemoError: the anchor is not there exactly once, so the tree is not one that the demo knows.
        """
        anchor = self.after + "\n"
        if text.count(anchor) != 1:
            raise DemoError(f"{self.path} has {text.count(anchor)} lines {self.after.strip()!r}, the demo expects one.")
        head, tail = text.split(anchor)
        return head + anchor + self.insert + tail


@dataclass(frozen=True)
class Pull:
    """One pull request.

    Attributes:
        branch: its head branch.
        title: what the page shows.
        message: the commit message.
        edits: what it changes.
    """

    branch: str
    title: str
    message: str
    edits: tuple[Edit, ...]


_HARMLESS_TITLE = "Check the shape that movedim gives"
_BREAKING_TITLE = "Require that what indexing selects can be exchanged through DLPack"
_BREAKING_MESSAGE = """Require that what indexing selects can be exchanged through DLPack

A view is handed to other libraries without a copy on every device, so the tests of indexing ask for it on every device.
"""
# A tensor of a renamed PrivateUse1 device does not name its device to DLPack (pytorch#195815). The CPU and CUDA keep
# the promise and every out-of-tree backend breaks it: a true break, that nobody but such a backend sees.
_DLPACK = """\
        selected = torch.arange(12.0, device=device).reshape(3, 4)[1]
        self.assertEqual(torch.from_dlpack(selected), selected)
"""

_REAL = (
    Pull(
        "harmless",
        _HARMLESS_TITLE,
        _HARMLESS_TITLE,
        (
            Edit(
                "test/test_shape_ops.py",
                "    def test_movedim_invalid(self, device, dtype):",
                "        self.assertEqual(torch.zeros(2, 3, device=device).movedim(0, 1).shape, (3, 2))\n",
            ),
        ),
    ),
    Pull(
        "breaking",
        _BREAKING_TITLE,
        _BREAKING_MESSAGE,
        (
            Edit("test/test_indexing.py", "    def test_multiple_int(self, device):", _DLPACK),
            Edit("test/test_indexing.py", "    def test_step(self, device):", _DLPACK),
        ),
    ),
)

_BUNDLED = (
    Pull(
        "harmless",
        _HARMLESS_TITLE,
        _HARMLESS_TITLE,
        (
            Edit(
                "test/test_views.py",
                "    def test_base(self, device):",
                "        self.assertEqual(torch.zeros(2, 3, device=device).movedim(0, 1).shape, (3, 2))\n",
            ),
        ),
    ),
    Pull(
        "breaking",
        _BREAKING_TITLE,
        _BREAKING_MESSAGE,
        (Edit("test/test_elementwise.py", "    def test_broadcast(self, device):", _DLPACK),),
    ),
)


def pulls_for(source: str) -> tuple[Pull, Pull]:
    """The harmless and the breaking pull request against a tree from ``source``."""
    return _BUNDLED if source == "bundled" else _REAL
