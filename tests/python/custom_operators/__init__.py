"""Custom operators and autograd functions as other libraries write them, each in a network of a few layers, for
test_custom_operators.py. CASES has what is expected of each."""
from . import functions, more_functions, precision, randomness, results, writes  # noqa: F401: they add their cases
from .network import CACHE, CALLS, CASES, Case, Network, STATE, bits, raw
from .operators import define, operator
from .results import workspace

__all__ = ["CALLS", "CASES", "Case", "Network", "STATE", "bits", "define", "forget", "operator", "raw"]


def forget():
    """Lets go of what operators keep, which is in the memory of the tests that follow."""
    STATE.clear()
    CACHE.clear()
    workspace.cache_clear()
