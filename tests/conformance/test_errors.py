"""What a person or a machine got wrong is a sentence and exit code 2: 1 means that a test had an unexpected result."""

import errno
import json
import sys

import pytest
import typer

from conformance.cli import app, main
from conformance.fetch import store
from conformance.inventory.tree import tree_version
from conformance.reports.accounts import Accounts
from conformance.runner.probe import Backend
from conformance.runner.run import Outcome, Session
from conformance.runner.supervisor import Supervisor
from conformance.times import Times


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CONFORMANCE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["conformance", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call


@pytest.fixture
def profile(tmp_path):
    """A folder with a profile; further lines are given."""

    def write(*lines):
        folder = tmp_path / "profile"
        folder.mkdir(exist_ok=True)
        (folder / "profile.yaml").write_text("\n".join(["name: mine", *lines, *([] if lines else ["device: cpu"])]))
        return folder

    return write


def assert_sentence(answer, *words):
    code, _, err = answer
    assert code == 2, err
    assert "Traceback" not in err
    for word in words:
        assert word in err
    return err


@pytest.mark.parametrize("inner", ["", "/below"])
def test_output_that_is_a_file(command, profile, tmp_path, inner):
    (tmp_path / "file").write_text("mine")
    assert_sentence(command("run", "--profile", profile(), "--output", f"{tmp_path}/file{inner}"), "--output", "folder")
    assert (tmp_path / "file").read_text() == "mine"


def test_output_that_cannot_be_made(command, profile):
    assert_sentence(command("run", "--profile", profile(), "--output", "/proc/foo"), "--output /proc/foo")


def test_output_whose_links_go_in_a_circle(command, profile, tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert_sentence(command("run", "--profile", profile(), "--output", tmp_path / "loop"), "--output")


@pytest.mark.parametrize("content", [b"[1]", b"7", b"null", b"\xff\xfe", b"{", b"[" * 100_000])
def test_resume_of_a_damaged_request(command, profile, tmp_path, content):
    (tmp_path / "out" / "state").mkdir(parents=True)
    (tmp_path / "out" / "state" / "request.json").write_bytes(content)
    assert_sentence(
        command("run", "--profile", profile(), "--output", tmp_path / "out", "--resume"), "--resume", "request.json"
    )


@pytest.mark.parametrize("line", ["[1]", "{}", '{"e":"end"}', '{"e":"end","id":"a","outcome":"unheard of"}'])
def test_resume_of_damaged_events(tmp_path, line):
    from conformance.errors import ConformanceError
    from conformance.runner.spec import Setup
    from conformance.selection.decide import Selection

    (tmp_path / "events.jsonl").write_text(line + "\n")
    setup = Setup("cpu", "", False, "", {}, Selection(frozenset(), "include"), (), None)
    with pytest.raises(ConformanceError, match="damaged"):
        Supervisor(setup, {}, tmp_path, jobs=1, timeout=1, import_timeout=1, fork=True, times=Times())


@pytest.mark.parametrize(
    "shard", ["²/３", "1/²", "٣/٤", "1", "0/2", "3/2", "1/99999999999", "1/" + "9" * 5000, "1/2\n"]
)
def test_shard_that_is_none(command, profile, tmp_path, shard):
    answer = command("run", "--profile", profile(), "--output", tmp_path / "out", "--shard", shard)
    assert_sentence(answer, "--shard", "i/n")


def test_changed_list_that_is_no_text(command, profile, tmp_path):
    (tmp_path / "list").write_bytes(b"\x7fELF\xff\xfe")
    answer = command("run", "--profile", profile(), "--output", tmp_path / "out", "--changed", f"@{tmp_path}/list")
    assert_sentence(answer, "--changed", "UTF-8")


@pytest.mark.parametrize("seconds", ["nan", "inf"])
def test_timeout_that_is_no_time(command, profile, tmp_path, seconds):
    answer = command("run", "--profile", profile(), "--output", tmp_path / "out", "--timeout", seconds)
    assert_sentence(answer, "--timeout")


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (r'environment: {A: "a\0b"}', "environment"),
        (r'environment: {"A\0": "1"}', "environment"),
        ('environment: {"A=B": "1"}', "environment"),
        ('environment: {"": "1"}', "environment"),
        (r'environment: {A: "\ud800"}', "Unicode"),
        (r'module: "a\0b"', "module"),
        ("policy: {import_timeout: .inf}", "import_timeout"),
        ("policy: {timeout: .nan}", "timeout"),
        ("policy: {timeout: 1e300}", "timeout"),
        ("description: [1", "not YAML"),
    ],
)
def test_profile_that_no_process_can_be_started_with(command, profile, tmp_path, line, field):
    folder = profile("device: cpu", line)
    answer = command("run", "--profile", folder, "--output", tmp_path / "out")
    assert_sentence(answer, str(folder / "profile.yaml"), field)
    assert not (tmp_path / "out").exists()


def test_device_that_no_process_can_be_started_with(command, profile, tmp_path):
    answer = command("run", "--profile", profile(r'device: "a\0b"'), "--output", tmp_path / "out")
    assert_sentence(answer, "device")


def test_tree_whose_version_is_no_text(tmp_path):
    (tmp_path / "version.txt").write_bytes(b"2.6\xff\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_bytes(b"ref: a\0b\xff")
    assert tree_version(tmp_path).startswith("2.6")


def test_tree_version_knows_a_packed_ref(tmp_path):
    (tmp_path / "version.txt").write_text("2.6.0\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git" / "packed-refs").write_text(
        f"# pack-refs\n{'b' * 40} refs/heads/x\n{'a' * 40} refs/heads/main\n"
    )
    assert tree_version(tmp_path) == "2.6.0+git" + "a" * 12


@pytest.fixture
def failing():
    """A command that raises what the test wants."""

    def install(error):
        @app.command("fail")
        def fail() -> None:
            raise error

    yield install
    app.registered_commands[:] = [item for item in app.registered_commands if item.name != "fail"]


def test_any_system_error_is_a_sentence(command, failing):
    failing(OSError(errno.ENOSPC, "No space left on device", "/full/disk"))
    assert_sentence(command("fail"), "conformance: /full/disk: No space left on device")


def test_a_reader_that_has_gone_is_no_broken_backend(command, failing, monkeypatch):
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    failing(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert command("fail")[0] == 2


def test_a_defect_keeps_its_traceback_but_is_no_broken_backend(command, failing):
    failing(KeyError("what"))
    code, _, err = command("fail")
    assert code == 2
    assert "Traceback" in err
    assert "KeyError: 'what'" in err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()])
def test_ctrl_c_says_interrupted(command, failing, error):
    failing(error)
    code, _, err = command("fail")
    assert (code, err.strip()) == (3, "conformance: interrupted")


def test_ctrl_c_while_files_are_imported_says_that_the_plan_is_incomplete(command, profile, monkeypatch):
    found = Outcome(Accounts(), Backend("2.14.1", 1), "", 1.0, [], interrupted="SIGINT")
    monkeypatch.setattr(Session, "execute", lambda *_, **__: found)
    code, _, err = command("plan", "--profile", profile())
    assert code == 3
    assert "interrupted by SIGINT" in err


def bring(folder):
    (folder / "test").mkdir()
    return "1.0", "here"


@pytest.mark.parametrize(
    "mark",
    [
        b"\xff\xfe",
        b"[1]",
        b"null",
        b"{}",
        b'{"path": "/nonexistent", "version": 5, "source": [1]}',
        b'{"version": "1", "source": null}',
        b"[" * 100_000,
    ],
)
def test_an_unusable_record_is_no_fetched_tree(mark):
    folder = store.tree_folder("x")
    (folder / "tree" / "test").mkdir(parents=True)
    (folder / store.MARK).write_bytes(mark)
    assert store.stored(folder) is None
    tree = store.keep("x", bring, print)
    assert (tree.path, tree.version) == (str(folder / "tree"), "1.0")
    assert store.stored(folder) == tree


def test_a_fetched_tree_lies_where_its_record_lies():
    folder = store.tree_folder("x")
    (folder / "tree" / "test").mkdir(parents=True)
    (folder / store.MARK).write_text(json.dumps({"path": "/nonexistent", "version": "1", "source": "here"}))
    assert store.stored(folder).path == str(folder / "tree")


def test_a_relative_cache_gives_absolute_paths(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONFORMANCE_CACHE_DIR", "cache")
    assert store.keep("x", bring, print).path == str(tmp_path / "cache" / "upstream" / "x" / "tree")
