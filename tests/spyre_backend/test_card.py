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


MUTANTS = {
    "barrier_dropped": "S_4_the_fetch_unit_runs_ahead_unless_there_is_a_barrier",
    "raw_edge_dropped": "R4_5_read_after_write",
    "war_edge_dropped": "R4_5_write_after_read",
    "waw_edge_dropped": "R4_5_write_after_write",
    "storage_offset_dropped": "R3_4_an_offset_is_part_of_the_address",
    "memory_freed_at_submission": "R1_8_memory_lives_until_its_operation_has_completed",
    "event_signalled_at_issue": "R4_9_a_signal_fires_after_everything_before_it",
    "last_error_instead_of_first": "R4_15_the_first_error_stays_when_the_stream_is_given_up_later",
    "staging_buffer_released_at_submission": "R3_8_a_staging_pool_holds_back_who_runs_ahead",
}


@pytest.fixture(scope="session")
def mutants():
    """The test program with every mutant built in, none active unless asked for."""
    return compile_card_program("mutants")


def test_every_mutant_in_the_sources_is_tried():
    used = set()
    for path in (build.SOURCES / "card").iterdir():
        used |= set(re.findall(r"SPYRE_MUTANT\((\w+)\)", path.read_text())) - {"name"}
    assert used == set(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_mutant_is_killed(mutants, mutant):
    """The test passes without the mutant and fails, by its own check, with it."""
    test = MUTANTS[mutant]
    assert subprocess.run([mutants, test], timeout=60).returncode == 0
    process = subprocess.run([mutants, "--mutant", mutant, test], capture_output=True, text=True, timeout=60)
    assert process.returncode == 1, f"{mutant} survived"
    assert "does not hold" in process.stderr
