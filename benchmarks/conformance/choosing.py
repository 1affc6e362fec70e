"""How long it takes to know what there is, and to decide about all of it.

- the inventory of a tree: cold, from another checkout of the same files, unchanged, and the whole command unchanged;
- plan and lint: ``--rules`` rules of a registry file decide ``--tests`` tests.

Processor seconds stand beside the seconds, because other work of the machine lengthens only the latter. Prints one
JSON object; its ratios are parts of the limits that the project sets itself in seconds and bytes.

    python benchmarks/conformance/choosing.py --upstream "$(conformance fetch | head -1)"
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from conformance.ids import TestId
from conformance.inventory import load_inventory
from conformance.registry.lint import Linter
from conformance.registry.load import load_registry
from conformance.registry.match import Registry
from conformance.registry.model import Capabilities
from conformance.selection.decide import Candidate, Selection, decide

DTYPES = ("float32", "float16", "bfloat16", "int64", "bool", "complex64", "float64", "int32", "uint8", "int8")


def measured(work: Any) -> tuple[Any, dict[str, float]]:
    """What ``work`` returns, with seconds and processor seconds, children included."""

    def processor() -> float:
        usages = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    before, started = processor(), time.perf_counter()
    value = work()
    return value, {
        "seconds": round(time.perf_counter() - started, 3),
        "processor_seconds": round(processor() - before, 3),
    }


def inventories(upstream: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CONFORMANCE_CACHE_DIR"] = folder
        cold, first = measured(lambda: load_inventory(upstream))
        _, unchanged = measured(lambda: load_inventory(upstream))
        other = Path(folder) / "checkout"
        shutil.copytree(upstream / "test", other / "test", copy_function=shutil.copyfile, symlinks=True)
        (other / "test" / "test_torch.py").write_text("import torch\n")
        fresh, checkout = measured(lambda: load_inventory(other))
        command = [sys.executable, "-m", "conformance", "inventory", "--upstream", str(upstream), "--json"]
        _, whole = measured(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
        return {
            "bytes": sum(row.size for row in cold.files.values()),
            "cold": first | {"scanned": cold.scanned},
            "unchanged": unchanged,
            "other_checkout_with_one_change": checkout | {"scanned": fresh.scanned},
            "unchanged_as_a_command": whole,
        }


def made_up(rules: int, tests: int) -> tuple[str, list[TestId]]:
    """A registry like those that teams have, and tests that it is about: many variants of few written tests."""
    chance = random.Random(1)
    ids = []
    for number in range(tests):
        written, variant = divmod(number, 250)
        op, dtype = divmod(variant, 10)
        file, cls = f"test/test_area{written % 50}.py", f"TestArea{written % 50}"
        ids.append(TestId(file, cls, f"test_case_{written}", f"op{op}", DTYPES[dtype], "", "device"))
    lines = ["version: 1", "rules:"]
    kinds = ("variant", "op", "op-dtype", "test", "glob", "xfail")
    for number in range(rules):
        test, kind = chance.choice(ids), kinds[number % 6]
        file = test.file.removeprefix("test/")
        where = {
            "variant": f"file: {file}, class: {test.cls}, test: {test.test}, op: {test.op}, dtype: {test.dtype}",
            "op": f"file: {file}, test: {test.test}, op: [{test.op}, op{number % 25}]",
            "op-dtype": f"class: {test.cls}, op: {test.op}, dtype: [{test.dtype}, bool]",
            "test": f"class: {test.cls}, test: {test.test}",
            "glob": f'class: {test.cls}, test: {test.test}, dtype: "{test.dtype[:3]}*"',
            "xfail": f"class: {test.cls}, test: {test.test}, op: {test.op}",
        }[kind]
        what = "action: skip, reason: unsupported-dtype"
        if kind == "xfail":
            what = "action: xfail, reason: numerics, signature: {exception: AssertionError, message: not close}"
        lines.append(f"  - {{id: rule-{number}, {where}, {what}}}")
    return "\n".join(lines) + "\n", ids


def decisions(rules: int, tests: int) -> dict[str, Any]:
    text, ids = made_up(rules, tests)
    answer: dict[str, Any] = {"rules": rules, "tests": tests, "registry_bytes": len(text)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "registry.yaml"
        path.write_text(text)

        def work() -> None:
            (loaded, document), answer["read"] = measured(lambda: load_registry(path))
            registry = Registry(loaded)
            selection = Selection(frozenset({"ACCELERATOR"}))
            decided, answer["plan"] = measured(
                lambda: sum(decide(Candidate(test, "ACCELERATOR"), selection, registry).executes for test in ids)
            )
            linter = Linter(path, loaded, Capabilities(version=1), document.position)

            def lint() -> None:
                linter.rules_alone(date.today())
                linter.tests(registry, ids)

            _, answer["lint"] = measured(lint)
            answer.update(executed=decided, findings=len(linter.findings))

        _, answer["together"] = measured(work)
    answer["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return answer


def fetched() -> Path | None:
    """The tree of ``conformance fetch``; where none can be had, that is said and the inventory is left out."""
    command = [sys.executable, "-m", "conformance", "fetch", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return Path(json.loads(done.stdout)["path"]) if done.returncode == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstream", type=Path, help="a PyTorch checkout (default: what `conformance fetch` brings)")
    parser.add_argument("--rules", type=int, default=30_000)
    parser.add_argument("--tests", type=int, default=250_000)
    arguments = parser.parse_args()
    decided = decisions(arguments.rules, arguments.tests)
    answer: dict[str, Any] = {"ratios": {}, "decisions": decided}

    def limit(name: str, found: float, allowed: float) -> None:
        """Notes which part of a limit was needed."""
        answer["ratios"][name] = {"ratio": found / allowed, "goal": "<= 1"}

    reading = decided["read"]["seconds"]
    limit("registry read and plan, of 5 s", reading + decided["plan"]["seconds"], 5)
    limit("registry read and lint, of 5 s", reading + decided["lint"]["seconds"], 5)
    limit("memory of both, of 1 GB", decided["peak_bytes"], 1e9)
    upstream = arguments.upstream or fetched()
    if upstream is not None:
        answer["inventory"] = found = inventories(upstream.resolve())
        limit("inventory, cold, of 6 s", found["cold"]["seconds"], 6)
        limit("inventory, cached, of 0.3 s", found["unchanged"]["seconds"], 0.3)
        limit("inventory, cached, the whole command, of 0.3 s", found["unchanged_as_a_command"]["seconds"], 0.3)
    print(json.dumps(answer, indent=2))


if __name__ == "__main__":
    main()
