"""Custom operators and autograd functions as other libraries write them, each in a network of a few layers, for
test_custom_operators.py. CASES has what is expected of each."""
from . import functions, more_functions, precision, randomness, results, writes  # noqa: F401: they add their cases
from .network import CALLS, CASES, Case, Network, STATE, bits, raw
from .operators import define, operator

__all__ = ["CALLS", "CASES", "Case", "Network", "STATE", "bits", "define", "operator", "raw"]
