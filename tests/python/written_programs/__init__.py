"""Training programs as people write them, for test_written_programs.py: each is run plain and in sessions, and every bit
compared. One subject per file; PROGRAMS has them by name."""

import importlib
import pkgutil

from .program import PROGRAMS, Program, bits, differences, seed

for _module in pkgutil.iter_modules(__path__):
    if _module.name != "times":  # a script
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["PROGRAMS", "Program", "bits", "differences", "seed"]
