"""Execute sm_90a and sm_100a PTX on a CPU, and catch what silicon forgives.

``parse(text)`` gives a ``Module``; ``GlobalMemory`` registers arrays as device memory; ``run`` executes a
kernel under a completion schedule and raises ``Fault`` at the first violation.
"""

from lethe.ptx.faults import KINDS, Fault
from lethe.ptx.machine import Machine, run
from lethe.ptx.memory import GlobalMemory
from lethe.ptx.parse import parse
from lethe.ptx.report import Report
from lethe.ptx.syntax import Instruction, Kernel, Module

__all__ = [
    "KINDS",
    "Fault",
    "GlobalMemory",
    "Instruction",
    "Kernel",
    "Machine",
    "Module",
    "Report",
    "parse",
    "run",
]
