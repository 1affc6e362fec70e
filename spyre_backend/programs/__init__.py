"""Programs: SpyreCode artifacts, ``prepare_kernel`` and ``launch_jobplan``.

How a program is written down (``manifest``, ``text``), built (``builder``), kept (``cache``), prepared (``plans``)
and launched (``schemes``). What should be in it is the business of ``spyre_backend.compiler``; the card's side is
``csrc/programs``.
"""

from spyre_backend.programs.builder import Operand, ProgramBuilder, Scalar
from spyre_backend.programs.cache import ArtifactCache
from spyre_backend.programs.errors import ArtifactError, BuildError
from spyre_backend.programs.plans import JobPlan, PlanStep
from spyre_backend.programs.schemes import launch_jobplan, prepare_kernel

__all__ = [
    "ArtifactCache",
    "ArtifactError",
    "BuildError",
    "JobPlan",
    "Operand",
    "PlanStep",
    "ProgramBuilder",
    "Scalar",
    "launch_jobplan",
    "prepare_kernel",
]
