"""Workflow commands in output and in files."""

import pytest

from relay.emulator.runner.commands import CommandError, Masks, OutputCommands, allowed_environment, parse_file
from relay.emulator.runner.globs import find_files, hash_files
from relay.emulator.runner.matrix import MatrixError, expand, suffix


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1\nb=x=y\n", {"a": "1", "b": "x=y"}),
        ("a=1\na=2", {"a": "2"}),
        ("a<<EOF\none\ntwo\nEOF\n", {"a": "one\ntwo"}),
        ("a<<EOF\nEOF\n", {"a": ""}),
        ("a<<EOF\r\none\r\nEOF\r\n", {"a": "one"}),
        ("a<<E O F\nb=1\nEOF\nE O F\n", {"a": "b=1\nEOF"}),
        ("a=x<<EOF\n", {"a": "x<<EOF"}),
        ("\ufeffa=1", {"a": "1"}),
        ("", {}),
    ],
)
def test_command_file(text: str, pairs: dict[str, str]) -> None:
    assert parse_file(text, "GITHUB_ENV") == pairs


@pytest.mark.parametrize("text", ["novalue", "=x", "<<EOF\nx\nEOF", "a<<EOF\nx\n", "a<<\nx\n"])
def test_malformed_command_file_is_an_error_that_names_the_file(text: str) -> None:
    with pytest.raises(CommandError, match="GITHUB_OUTPUT"):
        parse_file(text, "GITHUB_OUTPUT")


def test_github_own_variables_cannot_be_set() -> None:
    allowed, refused = allowed_environment({"A": "1", "GITHUB_SHA": "x", "RUNNER_OS": "y", "NODE_OPTIONS": "z"})
    assert allowed == {"A": "1"}
    assert refused == ["GITHUB_SHA", "RUNNER_OS", "NODE_OPTIONS"]


def test_masks_hide_longest_first_and_each_line() -> None:
    masks = Masks(["secret", "secret-longer", "  ", "two\nlines"])
    assert masks.hide("secret-longer secret   two x lines") == "*** ***   *** x ***"
    assert not masks.found_in("nothing")


def test_output_commands() -> None:
    masks = Masks()
    commands = OutputCommands(masks)
    assert commands.line("plain :: text") == "plain :: text"
    assert commands.line("::group::Title") == "##[group]Title"
    assert commands.line("::endgroup::") == "##[endgroup]"
    assert commands.line("::debug::hidden") is None
    assert commands.line("::add-mask::hush") == "::add-mask::***"
    assert masks.hide("hush") == "***"
    shown = commands.line("::error file=a.py,line=3,title=Bad%3A one::first%0Asecond %25")
    assert shown == "##[error]first\nsecond %"
    assert commands.annotations[0].message == "first\nsecond %"
    assert commands.annotations[0].properties == {"file": "a.py", "line": "3", "title": "Bad: one"}
    assert "deprecated" in commands.line("::set-output name=x::1")
    assert commands.outputs == {"x": "1"}
    assert "disabled" in commands.line("::set-env name=X::1")


def test_stopped_commands_are_plain_text_until_the_token() -> None:
    commands = OutputCommands(Masks())
    assert commands.line("::stop-commands::token-1") is None
    assert commands.line("::error::not one") == "::error::not one"
    assert commands.line("::token-1::") is None
    assert commands.line("::error::one") == "##[error]one"
    assert len(commands.annotations) == 1


def test_matrix_include_and_exclude_follow_the_documented_example() -> None:
    found = expand(
        {
            "fruit": ["apple", "pear"],
            "animal": ["cat", "dog"],
            "include": [
                {"color": "green"},
                {"color": "pink", "animal": "cat"},
                {"fruit": "apple", "shape": "circle"},
                {"fruit": "banana"},
                {"fruit": "banana", "animal": "cat"},
            ],
        }
    )
    assert found == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]
    assert expand({"a": [1, 2], "b": [1, 2], "exclude": [{"a": 1}]}) == [{"a": 2, "b": 1}, {"a": 2, "b": 2}]
    assert expand({"include": [{"x": 1}]}) == [{"x": 1}]
    assert suffix({"a": 1, "b": {"c": True, "d": [None, "z"]}}) == "1, true, , z"


@pytest.mark.parametrize("matrix", [{"a": 1}, {"a": []}, {"a": [1], "include": [2]}, {"a": list(range(257))}])
def test_bad_matrix(matrix: dict) -> None:
    with pytest.raises(MatrixError):
        expand(matrix)


def test_globs_and_hashes(tmp_path) -> None:
    for name in ("a.txt", "b.log", "deep/er/c.txt", "deep/d.log", ".hidden/e.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)

    def names(*patterns: str, hidden: bool = False) -> list[str]:
        return [str(file.relative_to(tmp_path)) for file in find_files(patterns, tmp_path, hidden).files]

    assert names("*.txt") == ["a.txt"]
    assert names("**/*.txt") == ["a.txt", "deep/er/c.txt"]
    assert names("**/*.txt", hidden=True) == [".hidden/e.txt", "a.txt", "deep/er/c.txt"]
    assert names("deep") == ["deep/d.log", "deep/er/c.txt"]
    assert names("**", "!**/*.log") == ["a.txt", "deep/er/c.txt"]
    assert names("[ab].*", "# comment", "") == ["a.txt", "b.log"]
    assert names("nothing/here") == []
    first = hash_files(["**/*.txt"], tmp_path)
    assert len(first) == 64 and first != hash_files(["*.txt"], tmp_path)
    (tmp_path / "a.txt").write_text("changed")
    assert hash_files(["**/*.txt"], tmp_path) != first
    assert hash_files(["*.none"], tmp_path) == ""
