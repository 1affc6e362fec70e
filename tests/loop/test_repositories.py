"""The demo's two repositories say exactly what the folders they are made from say."""

import shutil
import subprocess
from pathlib import Path

import pytest

from demo.pulls import BUNDLED_TREE, Edit, Pull, pulls_for
from demo.services import DemoError
from demo.upstream import Tree, make_downstream, make_upstream


def show(repository, what: str) -> str:
    return repository.git("show", what)


@pytest.fixture
def tree(tmp_path) -> Tree:
    folder = tmp_path / "tree"
    folder.joinpath("test").mkdir(parents=True)
    folder.joinpath("test", "test_a.py").write_text("first\nsecond\n")
    folder.joinpath(".gitignore").write_text("*.log\n")
    folder.joinpath("kept.log").write_text("upstream's tarball has it\n")
    return Tree(folder, "9.9", "debian")


def test_upstream_holds_the_whole_tree_and_is_made_once(tree, tmp_path):
    repository, sha = make_upstream(tree, tmp_path / "cache")
    assert show(repository, "main:kept.log") == "upstream's tarball has it"
    made = repository.path.stat().st_ino
    again, same = make_upstream(tree, tmp_path / "cache")
    assert (again.path.stat().st_ino, same) == (made, sha)


def test_a_repository_that_was_half_made_is_not_used(tree, tmp_path):
    partial = tmp_path / "cache" / "upstream-debian-9.9.partial"
    partial.mkdir(parents=True)
    partial.joinpath("HEAD").write_text("ref: refs/heads/nonsense\n")
    repository, _ = make_upstream(tree, tmp_path / "cache")
    assert show(repository, "main:test/test_a.py") == "first\nsecond"
    assert not partial.exists()


@pytest.mark.parametrize("damage", ["empty folder", "no commits", "an object is gone"])
def test_a_damaged_repository_is_made_again(tree, tmp_path, damage):
    cache = tmp_path / "cache"
    repository, sha = make_upstream(tree, cache)
    if damage == "an object is gone":
        for pack in repository.path.glob("objects/pack/*.pack"):
            pack.unlink()
    else:
        shutil.rmtree(repository.path)
        repository.path.mkdir()
        if damage == "no commits":
            repository.create()
    assert make_upstream(tree, cache)[1] == sha
    assert show(repository, "main:test/test_a.py") == "first\nsecond"


def test_a_pull_request_is_one_commit_on_the_base_with_only_its_edit(tree, tmp_path):
    repository, base = make_upstream(tree, tmp_path / "cache")
    pull = Pull("feature", "A title", "A message", (Edit("test/test_a.py", "first", "between\n"),))
    head = repository.commit_edit(base, pull, hours=1)
    assert show(repository, f"{head}:test/test_a.py") == "first\nbetween\nsecond"
    assert repository.git("diff", "--name-only", base, head) == "test/test_a.py"
    assert repository.git("rev-parse", f"{head}^") == base
    assert repository.git("rev-parse", "refs/heads/feature") == head


@pytest.mark.parametrize("anchor", ["absent", ""])
def test_an_edit_whose_anchor_is_not_there_once_says_so(anchor):
    with pytest.raises(DemoError, match=r"test_a\.py has \d lines"):
        Edit("test/test_a.py", anchor, "new\n").apply("first\n\n\nsecond\n")


def test_downstream_is_the_working_tree_with_uncommitted_changes_and_without_ignored_files(tmp_path):
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    subprocess.run(["git", "init", "--quiet", checkout], check=True)
    checkout.joinpath(".gitignore").write_text("/build/\n")
    checkout.joinpath("build").mkdir()
    checkout.joinpath("build", "big").write_text("x")
    checkout.joinpath("new.py").write_text("print()\n")
    repository = make_downstream(checkout, tmp_path / "down.git")
    assert repository.git("ls-tree", "-r", "--name-only", "main").split() == [".gitignore", "new.py"]
    assert not (checkout / ".git" / "index").exists(), "the checkout's own index was touched"


def test_the_pull_requests_apply_to_the_bundled_tree(tmp_path):
    repository, base = make_upstream(Tree(BUNDLED_TREE, "bundled", "bundled"), tmp_path)
    for pull in pulls_for("bundled"):
        head = repository.commit_edit(base, pull, hours=1)
        for path in repository.git("diff", "--name-only", base, head).split():
            compile(show(repository, f"{head}:{path}"), path, "exec")
    assert Path(BUNDLED_TREE, "test").is_dir()
