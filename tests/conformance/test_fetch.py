"""Fetching: whole or not at all, by git and by source package."""

import json
import subprocess

import pytest

from conformance.errors import ConformanceError
from conformance.fetch import debian, store


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CONFORMANCE_CACHE_DIR", str(tmp_path / "cache"))


def bring(folder):
    (folder / "test").mkdir()
    return "1.0", "here"


def test_a_broken_fetch_leaves_nothing(tmp_path):
    def fails(folder):
        bring(folder)
        raise ConformanceError("line went dead")

    with pytest.raises(ConformanceError, match="went dead"):
        store.keep("x", fails, print)
    assert store.stored(store.tree_folder("x")) is None
    assert [p.name for p in store.tree_folder("x").parent.iterdir()] == [".x.lock"]
    assert store.keep("x", bring, print).version == "1.0"


def test_a_half_written_tree_is_never_used():
    folder = store.tree_folder("x")
    (folder / "tree" / "test").mkdir(parents=True)
    assert store.stored(folder) is None
    assert store.keep("x", bring, print).path == str(folder / "tree")


def test_what_is_no_pytorch_tree_is_refused():
    with pytest.raises(ConformanceError, match="no PyTorch tree"):
        store.keep("x", lambda folder: ("1", "somewhere"), print)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "sources.list.d/a.sources",
            "Types: deb\nURIs: http://mirror.invalid/debian\nSuites: stable\nSigned-By: /k.gpg\n",
        ),
        ("sources.list", "deb [signed-by=/k.gpg] http://mirror.invalid/debian stable main\n"),
    ],
)
def test_sources_come_from_the_machine(tmp_path, name, text):
    path = tmp_path / "apt" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    stanza = debian.archive_stanza(tmp_path / "apt")
    assert "URIs: http://mirror.invalid/debian" in stanza
    assert f"Suites: {debian.SUITE}" in stanza
    assert "Types: deb-src" in stanza
    assert "Signed-By: /k.gpg" in stanza


def test_no_debian_archive_is_said(tmp_path):
    with pytest.raises(ConformanceError, match="no Debian archive"):
        debian.archive_stanza(tmp_path)


def test_git_by_commit_and_tag(conformance, tmp_path):
    repository = tmp_path / "repository"
    (repository / "test").mkdir(parents=True)
    (repository / "test" / "test_x.py").write_text("")
    (repository / "version.txt").write_text("3.1.0\n")

    def git(*arguments):
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=repository, check=True, capture_output=True, text=True
        ).stdout

    git("init", "--quiet", "--initial-branch=main")
    git("config", "uploadpack.allowAnySHA1InWant", "true")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    git("tag", "-a", "v3.1.0", "-m", "release")
    commit = git("rev-parse", "HEAD").strip()
    cache = {"CONFORMANCE_CACHE_DIR": str(tmp_path / "cache2")}
    by_tag = conformance("fetch", "--json", "--repository", repository, "--ref", "v3.1.0", **cache)
    assert by_tag.returncode == 0, by_tag.stderr
    answer = json.loads(by_tag.stdout)
    assert answer["source"].endswith(commit)
    assert answer["version"].startswith("3.1.0+git")
    by_commit = conformance("fetch", "--json", "--repository", repository, "--ref", commit, **cache)
    assert json.loads(by_commit.stdout) == answer
    missing = conformance("fetch", "--repository", repository, "--ref", "v9", **cache)
    assert missing.returncode == 2
    assert "no tag or branch 'v9'" in missing.stderr
    nowhere = conformance("fetch", "--repository", tmp_path / "nothing", "--ref", "v9", **cache)
    assert nowhere.returncode == 2
    assert "cannot be reached" in nowhere.stderr
