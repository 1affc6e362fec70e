"""The card by itself, compiled without torch: each test of ``card/card_test.cpp`` is one test here."""

import re
import subprocess
from pathlib import Path

import pytest

from spyre_backend import build

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "card" / "card_test.cpp"
NAMES = re.findall(r"^TEST\((\w+)\)", SOURCE.read_text(), re.MULTILINE)


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """The test program; compiling it proves that the card needs nothing but the standard library."""
    target = tmp_path_factory.mktemp("card") / "card_test"
    sources = [str(path) for path in sorted((build.SOURCES / "card").glob("*.cpp"))]
    flags = ["-std=c++20", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{build.SOURCES}"]
    subprocess.run([*build.find_compiler(), *flags, *sources, str(SOURCE), "-o", str(target)], check=True)
    return target


def test_every_test_is_known(program):
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(NAMES) == listed
    assert len(NAMES) == len(set(NAMES)) > 20


@pytest.mark.parametrize("name", NAMES)
def test_card(program, name):
    process = subprocess.run([program, name], capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr


def test_no_torch_header_in_the_card():
    for path in (build.SOURCES / "card").iterdir():
        for line in path.read_text().splitlines():
            assert not re.match(r'#include [<"](ATen|c10|torch|pybind11|Python|bridge)', line), f"{path.name}: {line}"


def test_no_torch_symbol_in_the_card(program):
    symbols = subprocess.run(["nm", "-C", program], capture_output=True, text=True, check=True).stdout
    assert "c10::" not in symbols
    assert "at::Tensor" not in symbols
