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


def pulls_for(tree_source: str) -> tuple[Pull, ...]:
    return ()
