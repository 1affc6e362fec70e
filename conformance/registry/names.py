"""What the installed torch calls its operators, modules, optimizers and dtypes (C15).

Asked in a process of its own, because importing the databases takes seconds and a gigabyte; kept per version of torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.errors import ConformanceError
from conformance.paths import cache_root

_SCRIPT = """
import json, torch
from torch.testing._internal import common_methods_invocations as databases
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
op_db = databases.op_db
lists = [v for v in vars(databases).values() if isinstance(v, list) and v and isinstance(v[0], databases.OpInfo)]
infos = [(o.full_name, o.formatted_name) for v in [op_db, *lists] for o in v if isinstance(o, databases.OpInfo)]
infos += [(m.name, m.formatted_name) for m in module_db] + [(o.name, o.name) for o in optim_db]
dtypes = sorted({str(v).rpartition(".")[2] for v in vars(torch).values() if isinstance(v, torch.dtype)})
aten = {o.full_name: sorted({str(d).rpartition(".")[2] for d in o.dtypes}) for o in op_db}
print("names:" + json.dumps({"infos": infos, "dtypes": dtypes, "cpu_dtypes": aten}))
"""


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the installed torch.

    Attributes:
        infos: name as in test ids (``nn.functional.linear``) → the spelling inside of generated test names
            (``nn_functional_linear``), for operators, modules and optimizers.
        dtypes: ``float32`` and relatives.
        cpu_dtypes: operator → dtypes that its entry of ``op_db`` claims for the CPU.
    """

    infos: dict[str, str]
    dtypes: tuple[str, ...]
    cpu_dtypes: dict[str, tuple[str, ...]]


def _version() -> str:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        raise ConformanceError("torch is not installed: names of operators and dtypes cannot be checked without it")
    version = Path(spec.origin).with_name("version.py").read_bytes()
    return hashlib.sha256(os.fsencode(spec.origin) + version).hexdigest()[:16]


def installed_names() -> Names:
    """Asks torch, or the answer kept from the last time.

    Raises:
        ConformanceError: torch is not installed or cannot be imported.
    """
    path = cache_root() / f"names-{_version()}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return _names(json.loads(path.read_text(encoding="utf-8")))
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, errors="replace", check=False,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )  # fmt: skip
    line = next((text for text in done.stdout.splitlines() if text.startswith("names:")), "")
    if not line:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise ConformanceError(f"torch's operator database cannot be imported: {last[0]}")
    answer = json.loads(line.removeprefix("names:"))
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(answer), encoding="utf-8")
    return _names(answer)


def _names(answer: dict[str, Any]) -> Names:
    infos, dtypes, claimed = answer["infos"], answer["dtypes"], answer["cpu_dtypes"]
    return Names(
        dict(infos),
        tuple(dtypes),
        {name: tuple(values) for name, values in claimed.items()},
    )
