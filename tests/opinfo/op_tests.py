"""PyTorch's own operator and module samples, plain and with every saved tensor dropped that can be made again.

Usage: op_tests.py [--dtypes float32,float64,bfloat16,complex64] [--suites op,module] [--samples N] [--noncontiguous]
                   [--only PART] [--pin FILE] [--write-pin FILE] [--json FILE]

Outputs, gradients and second-order gradients must be the same bits. A sample whose plain run differs from itself is set
aside. With --noncontiguous the operators' samples are PyTorch's non-contiguous ones: every second element of a storage twice
as large, as test_noncontiguous_samples has them, also where an operator made the input. Exit 1 when something differs, fails only when recorded, or is not what the pin file says.
"""
import argparse
import collections
import contextlib
import gc
import json
import math
import os
import pathlib
import random
import sys
import time
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("PYTORCH_TESTING_DEVICE_ONLY_FOR", "cpu")

import torch

import snug
from torch.testing._internal.common_utils import noncontiguous_like
from torch.utils._pytree import tree_flatten, tree_map

SEED_FORWARD, SEED_GRADIENT, SEED_SECOND = 5, 9, 11
REPEATS = 20
RESULTS = ("equal", "different", "error", "differs from itself", "no gradient", "plain run fails")


def is_tensor(x):
    return isinstance(x, torch.Tensor)


def is_strided(x):
    return is_tensor(x) and x.layout == torch.strided


def flat(tree):
    return [x for x in tree_flatten(tree)[0] if is_tensor(x)]


def copied(tree):
    """Leaves of their own for every run: samples may be changed in place."""
    seen = {}

    def copy(x):
        if not is_strided(x) or x.is_nested:
            return x
        if id(x) not in seen:
            fresh = x.detach().clone()  # which is dense, whatever x is
            seen[id(x)] = (noncontiguous_like(fresh) if noncontiguous else fresh).requires_grad_(x.requires_grad)
        return seen[id(x)]

    return tree_map(copy, tree)


def bits(x):
    """What a tensor is, to the bit; None for nothing."""
    if x is None:
        return None
    x = x.detach()
    if x.layout != torch.strided:
        return ("other layout", str(x.layout), tuple(x.shape), bits(x.to_dense()))
    if x.is_quantized:
        x = x.dequantize()
    shape, dtype = tuple(x.shape), str(x.dtype)
    if x._is_zerotensor():
        x = torch.zeros(shape, dtype=x.dtype)
    # A copy of its own: reshape may leave strides that bytes cannot be seen through.
    x = x.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)
    return (dtype, shape, x.as_strided((x.numel(),), (1,)).view(torch.uint8).numpy().tobytes() if x.numel() else b"")


def random_like(x):
    return torch.randn_like(x) if x.numel() else torch.zeros_like(x)


def differentiable(tensors):
    return [x for x in tensors if is_strided(x) and x.requires_grad and not x.is_nested]


def made_by_operator(x):
    """The same numbers as an operator's result, so that an input too can be dropped."""
    if not is_strided(x) or not x.requires_grad or x.is_nested:
        return x
    if not noncontiguous or x.is_contiguous():
        return x * 1
    return torch.stack((torch.full_like(x, math.nan), x), -1)[..., 1]


verify_replay = False  # hash what is dropped, too
noncontiguous = False  # samples


def plain_scope():
    return contextlib.nullcontext()


def recorded_scope():
    """Everything in it is recorded, and whatever autograd saves is dropped if it can be made again."""
    return snug.Region(snug.Recompute(), verify_replay=verify_replay)


def run(case, scope, second_order):
    """Bits of outputs, gradients and, if asked for, gradients of gradients. None without a gradient."""
    forward, arguments = case
    arguments = copied(arguments)
    leaves = differentiable(flat(arguments))
    torch.manual_seed(SEED_FORWARD)
    with scope:
        extra_leaves, outputs = forward(tree_map(made_by_operator, arguments))
        after = torch.rand(2)
    leaves = leaves + extra_leaves
    outputs = differentiable(flat(outputs))
    if not outputs or not leaves:
        return None
    torch.manual_seed(SEED_GRADIENT)
    gradients = torch.autograd.grad(outputs, leaves, [random_like(x) for x in outputs], allow_unused=True,
                                    create_graph=second_order)
    found = [bits(x) for x in outputs] + [bits(x) for x in gradients] + [bits(after)]
    if second_order:
        again = differentiable([x for x in gradients if x is not None])
        if again:
            torch.manual_seed(SEED_SECOND)
            second = torch.autograd.grad(again, leaves, [random_like(x) for x in again], allow_unused=True)
            found += [bits(x) for x in second]
    return found


def judge(case, second_order, reasons):
    """One of RESULTS, and a word on it."""
    try:
        plain = run(case, plain_scope(), second_order)
        again = run(case, plain_scope(), second_order)
    except Exception as error:  # noqa: BLE001: whatever an operator throws
        return "plain run fails", first_line(error)
    if plain is None:
        return "no gradient", ""
    if plain != again:
        return "differs from itself", ""
    scope = recorded_scope()
    try:
        recorded = run(case, scope, second_order)
    except Exception as error:  # noqa: BLE001
        return "error", first_line(error)
    if recorded == plain:
        reasons.update(scope.saved_tensors)
        return "equal", ""
    # Some results depend on where in memory the arguments happen to lie (lstsq): then one run is like the other, or a
    # plain one is not like itself. What replay gets wrong, it gets wrong every time.
    ballast = []
    for _ in range(REPEATS):
        ballast.append(torch.empty(random.randrange(1, 1000)))
        if run(case, plain_scope(), second_order) != plain or run(case, recorded_scope(), second_order) == plain:
            return "differs from itself", ""
    places = [i for i, (a, b) in enumerate(zip(plain, recorded)) if a != b]
    return "different", f"results {places} of {len(plain)}"


def first_line(error):
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]


def op_cases(dtype, samples):
    from torch.testing._internal.common_methods_invocations import op_db
    for op in op_db:
        if not op.supports_autograd or dtype not in op.supported_backward_dtypes("cpu"):
            continue
        name = op.name + ("." + op.variant_test_name if op.variant_test_name else "")
        torch.manual_seed(1)
        try:
            found = list(op.sample_inputs("cpu", dtype, requires_grad=True))
            if noncontiguous:
                found = [sample.noncontiguous() for sample in found]
        except Exception as error:  # noqa: BLE001
            yield name, None, first_line(error), False
            continue
        for sample in chosen(found, samples):
            def forward(arguments, op=op, sample=sample):
                value, args, kwargs = arguments
                return [], sample.output_process_fn_grad(op(value, *args, **kwargs))

            yield name, (forward, (sample.input, sample.args, sample.kwargs)), "", op.supports_gradgrad


def module_cases(dtype, samples):
    from torch.testing._internal.common_modules import module_db
    for info in module_db:
        if dtype not in info.dtypes:
            continue
        for training in (True, False):
            torch.manual_seed(1)
            try:
                inputs = list(info.module_inputs_func(info, "cpu", dtype, True, training))
            except Exception as error:  # noqa: BLE001
                yield info.name, None, first_line(error), False
                continue
            for sample in chosen(inputs, samples):
                if sample.forward_input is None:
                    continue

                def forward(arguments, info=info, sample=sample, training=training):
                    args, kwargs = arguments
                    # Made anew, from the same seed: running statistics and other buffers begin afresh.
                    with torch.random.fork_rng(devices=[]):
                        torch.manual_seed(3)
                        make = sample.constructor_input
                        module = info.module_cls(*make.args, **make.kwargs).to("cpu", dtype)
                    module.train(training)
                    outputs = module(*args, **kwargs)
                    buffers = [b for b in module.buffers() if b.is_floating_point()]
                    # Buffers after the step count as results: the module may update them.
                    joined = [outputs] + [b.detach().clone() for b in buffers]
                    return [p for p in module.parameters() if p.requires_grad], joined

                yield info.name, (forward, (sample.forward_input.args, sample.forward_input.kwargs)), "", \
                    info.supports_gradgrad


def chosen(items, most):
    if most and len(items) > most:
        return random.Random(0).sample(items, most)
    return items


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", help="float32,float64,bfloat16,complex64; float32,complex64 with --noncontiguous")
    parser.add_argument("--suites", help="op,module; op with --noncontiguous, as modules have no such samples")
    parser.add_argument("--noncontiguous", action="store_true")
    parser.add_argument("--samples", type=int, default=0, help="per operator; all without it")
    parser.add_argument("--only", default="")
    parser.add_argument("--verify", action="store_true", help="with verify_replay on")
    parser.add_argument("--pin", type=pathlib.Path)
    parser.add_argument("--write-pin", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    global verify_replay, noncontiguous
    verify_replay, noncontiguous = options.verify, options.noncontiguous
    dtypes = options.dtypes or ("float32,complex64" if noncontiguous else "float32,float64,bfloat16,complex64")
    suites = options.suites or ("op" if noncontiguous else "op,module")
    if noncontiguous and suites != "op":
        parser.error("--noncontiguous: PyTorch has such samples for operators only: write --suites op, or nothing")
    torch.set_num_threads(1)  # tiny tensors; and nothing that depends on how work is split
    started = time.time()
    counts, reasons, refusals, troubles, tests = {}, collections.Counter(), collections.Counter(), [], 0
    strided_apart = 0  # samples with a tensor that is not contiguous; one of a single element always is
    for suite in suites.split(","):
        cases = {"op": op_cases, "module": module_cases}[suite]
        for dtype in dtypes.split(","):
            key = f"{suite} {dtype}"
            counts[key] = collections.Counter()
            for name, case, trouble, gradgrad in cases(getattr(torch, dtype), options.samples):
                if options.only and options.only not in name:
                    continue
                if case is None:
                    counts[key]["plain run fails"] += 1
                    continue
                strided_apart += any(is_strided(x) and not x.is_contiguous() for x in flat(case[1]))
                for second_order in (False, True) if gradgrad else (False,):
                    result, word = judge(case, second_order, reasons)
                    counts[key][result] += 1
                    if result == "plain run fails":
                        refusals[f"{name}: {word}"] += 1
                    if result in ("different", "error"):
                        order = "second order" if second_order else "first order"
                        troubles.append(f"{key} {name}, {order}: {result} {word}")
                        if len(troubles) <= 200:
                            print(troubles[-1], flush=True)
                tests += 1
                if tests % 500 == 0:
                    gc.collect()
            print(f"{key:17}" + "  ".join(f"{r}: {counts[key][r]}" for r in RESULTS if counts[key][r]), flush=True)
    total = sum(counts.values(), collections.Counter())
    print("all              " + "  ".join(f"{r}: {total[r]}" for r in RESULTS))
    print("saved tensors    " + "  ".join(f"{k}: {v}" for k, v in sorted(reasons.items())))
    print(f"{tests} samples in {time.time() - started:.0f} s" +
          (f", {strided_apart} of them with tensors that are not contiguous" if noncontiguous else ""))
    found = {"torch": torch.__version__.split("+")[0], "samples": tests, "results": {k: dict(v) for k, v in counts.items()},
             "saved": dict(reasons), "plain run fails": dict(refusals),
             "troubles": troubles}
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    pinned = {"torch": found["torch"], "samples": tests, "compared": total["equal"] + total["differs from itself"],
              "saved": dict(sorted(reasons.items()))}
    if noncontiguous:
        pinned["noncontiguous"] = strided_apart
    if options.write_pin:
        others = json.loads(options.write_pin.read_text()) if options.write_pin.exists() else []
        pins = [pin for pin in others if pin["torch"] != pinned["torch"]] + [pinned]
        options.write_pin.write_text(json.dumps(sorted(pins, key=lambda pin: pin["torch"]), indent=1) + "\n")
    if troubles:
        sys.exit(f"op_tests: {total['different']} different, {total['error']} fail only when recorded")
    if options.pin:
        check_pin(json.loads(options.pin.read_text()), pinned)


def check_pin(pins, found):
    """Samples must be as many as they were with this torch; saved tensors nearly, as some samples differ from themselves now
    and then."""
    expected = next((pin for pin in pins if pin["torch"] == found["torch"]), None)
    if expected is None:
        print(f"pinned for torch {', '.join(pin['torch'] for pin in pins)}, not compared")
        return
    near = all(abs(found["saved"].get(k, 0) - n) <= 0.01 * n + 5 for k, n in expected["saved"].items())
    if not near or any(expected.get(k) != found.get(k) for k in ("samples", "compared", "noncontiguous")):
        sys.exit(f"op_tests: pinned {expected}, found {found}")


if __name__ == "__main__":
    main()
