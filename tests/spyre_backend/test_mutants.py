"""Faults built in on purpose (``csrc/card/mutant.h``): each must be noticed by the test of the promise it breaks.

The card's run in its test program; the bridge's in a copy of the package whose binary has one file compiled anew.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from card_program import compile_card_program

from spyre_backend import build

# The first test of each kind compiles, which takes minutes on a machine that is busy with other things.
pytestmark = pytest.mark.timeout(1800)

CARD = {
    "barrier_dropped": "S_4_the_fetch_unit_runs_ahead_unless_there_is_a_barrier",
    "raw_edge_dropped": "R4_5_read_after_write",
    "war_edge_dropped": "R4_5_write_after_read",
    "waw_edge_dropped": "R4_5_write_after_write",
    "memory_freed_at_submission": "R1_8_memory_lives_until_its_operation_has_completed",
    "event_signalled_at_issue": "R4_9_a_signal_fires_after_everything_before_it",
    "last_error_instead_of_first": "R4_15_the_first_error_stays_when_the_stream_is_given_up_later",
    "staging_buffer_released_at_submission": "R3_8_a_staging_pool_holds_back_who_runs_ahead",
}
# Mutant -> its file, and what must hold.
BRIDGE = {
    "storage_offset_dropped": (
        "copy",
        "import torch\n"
        "host = torch.arange(256.0)\n"
        "x = host.to('spyre:0')\n"
        "assert x[64:128].cpu().tolist() == host[64:128].tolist(), 'to the host'\n"
        "assert x[64:128].to('spyre:1').tolist() == host[64:128].tolist(), 'to a peer'\n"
        "x[32:64].copy_(torch.zeros(32))\n"
        "host[32:64] = 0\n"
        "assert x.tolist() == host.tolist(), 'to the device'\n",
    ),
}


def test_every_mutant_in_the_sources_is_tried():
    used = set()
    for path in build.SOURCES.rglob("*.[ch]*"):
        used |= set(re.findall(r"SPYRE_MUTANT\((\w+)\)", path.read_text())) - {"name"}
    assert used == {*CARD, *BRIDGE}


@pytest.fixture(scope="module")
def card_program():
    """The card's test program with every mutant built in, none active unless asked for."""
    return compile_card_program("mutants")


@pytest.mark.parametrize("mutant", CARD)
def test_the_mutant_of_the_card_is_killed(card_program, mutant):
    """The test passes without the mutant and fails, by its own check, with it."""
    assert subprocess.run([card_program, CARD[mutant]], timeout=60).returncode == 0
    process = subprocess.run(
        [card_program, CARD[mutant]],
        env={**os.environ, "SPYRE_MUTANT": mutant},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 1, f"{mutant} survived"
    assert "does not hold" in process.stderr


def copy_with_mutants(source, folder):
    """Puts a copy of the package into ``folder``, with the mutants of one file of the bridge built in."""
    package = folder / "spyre_backend"
    shutil.copytree(build.PACKAGE, package, ignore=shutil.ignore_patterns("csrc", "*.so", "__pycache__"))
    binary = build.binary_for(torch.__version__)
    objects = build.objects_for(torch.__version__)
    # The same commands that made the binary, with another object file and another target.
    database = subprocess.run([build.find_ninja(), "-C", objects, "-t", "compdb"], capture_output=True, check=True)
    commands = {entry["output"]: entry["command"] for entry in json.loads(database.stdout)}
    known, fresh = str(objects / "bridge" / f"{source}.o"), str(folder / f"{source}.o")
    compile_again = commands[known].replace(known, fresh) + " -DSPYRE_MUTANTS"
    link_again = commands[str(binary)].replace(known, fresh).replace(str(binary), str(package / binary.name))
    for command in (compile_again, link_again):
        subprocess.run(command, shell=True, cwd=objects, check=True)


@pytest.mark.parametrize("mutant", BRIDGE)
def test_the_mutant_of_the_bridge_is_killed(mutant, tmp_path):
    """The script ends well without the mutant and fails, by its own check, with it."""
    source, script = BRIDGE[mutant]
    copy_with_mutants(source, tmp_path)
    for active in ("", mutant):
        process = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": str(tmp_path), "SPYRE_MUTANT": active},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
        )
        if active:
            assert process.returncode == 1, f"{mutant} survived"
            assert "AssertionError: to the host" in process.stderr
        else:
            assert process.returncode == 0, process.stderr
