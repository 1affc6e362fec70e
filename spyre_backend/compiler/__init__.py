"""What turns calls into programs of the card: ``eager`` for one operator, ``inductor`` for graphs of ``torch.compile``.

No program is stored or launched here, and importing this package imports neither Dynamo nor Inductor.
"""

from __future__ import annotations

from typing import Any

from spyre_backend import _C
from spyre_backend.compiler import inductor

__all__ = ["install"]


def install() -> None:
    """Registers both compilers. What they need is imported when the first call or graph comes."""
    _C.set_eager_compiler(_compile_call)
    inductor.install()


def _compile_call(*call: Any) -> Any:
    from spyre_backend.compiler.eager import compile_call

    return compile_call(*call)
