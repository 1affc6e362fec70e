"""The card by itself, compiled without torch: each test of ``card/*_test.cpp`` is one test here.

``CARD_VARIANT=thread`` or ``address`` runs them under a sanitizer (``make sanitize``).
"""

import os
import re
import subprocess

import pytest
from card_program import NAMES, compile_card_program

from spyre_backend import build

VARIANT = os.environ.get("CARD_VARIANT", "plain")
# The first test of each program compiles it, which takes minutes on a machine that is busy with other things.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="session")
def program():
    """The test program of the variant."""
    return compile_card_program(VARIANT)


def test_every_test_is_known(program):
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(NAMES) == listed
    assert len(NAMES) == len(set(NAMES)) > 50


@pytest.mark.parametrize("name", NAMES)
def test_card(program, name):
    process = subprocess.run([program, name], capture_output=True, text=True, timeout=200)
    assert process.returncode == 0, process.stderr


def test_no_torch_header_in_the_card():
    for path in (build.SOURCES / "card").iterdir():
        for line in path.read_text().splitlines():
            assert not re.match(r'#include [<"](ATen|c10|torch|pybind11|Python|bridge)', line), f"{path.name}: {line}"


def test_no_torch_symbol_in_the_card(program):
    symbols = subprocess.run(["nm", "-C", program], capture_output=True, text=True, check=True).stdout
    assert "c10::" not in symbols
    assert "at::Tensor" not in symbols
