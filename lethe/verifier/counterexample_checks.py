"""The second half of a counterexample's script: what is compared, for each kind of defect.

`counterexample_body` is the first half; `counterexample_text` joins them into one file, without the import
of the first half below.
"""

import math
import os
import subprocess
import sys

import torch

from lethe.verifier.counterexample_body import (  # @JOINED@
    CASE,
    CONTROL,
    DEVICE,
    EXECUTOR,
    CannotRun,
    Embedded,
    Run,
    cast,
    digest,
    kind_of,
    map_tensors,
    real,
    same_bytes,
)


def answer(defect, text):
    """Print what was seen and return the exit status."""
    print(text)
    print("reason:", CASE["reason"])
    print("the defect shows" if defect else "the defect does not show here")
    return 1 if defect else 0


def measured(run, got, exact, name):
    """Error of one element against the bound that the verdict states."""
    where, bound = tuple(CASE["where"]), CASE["bound"] or 0.0
    g, e = float(real(got)[where]), float(real(exact)[where])
    if not abs(e - CASE["expected"]) <= max(bound, 1e-6 * abs(e)):
        raise CannotRun(f"float64 gives {e:.9g} here and gave {CASE['expected']:.9g} to the verdict")
    error = abs(g - e)
    text = f"{name} at {list(where)}: got {g:.9g}, expected {e:.9g}, error {error:.3g}, bound {bound:.3g}"
    return answer(not error <= bound, text)


def check_value(run):
    got, index = run.call().tensors, CASE["output"]
    if not run.want[index].is_floating_point() and not run.want[index].is_complex():
        where = tuple(CASE["where"])
        g, w = got[index][where].item(), run.want[index][where].item()
        return answer(g != w, f"output {index} at {list(where)}: got {g}, expected {w}")
    return measured(run, got[index], run.exact[index], f"output {index}")


def check_statistic(run):
    errors = total = 0.0
    for g, e in zip(run.call().tensors, run.exact, strict=True):
        if e.is_floating_point() or e.is_complex():
            a, b = real(g), real(e)
            both = a.isfinite() & b.isfinite()
            errors += float(torch.where(both, a - b, 0.0).square().sum())
            total += float(torch.where(both, b, 0.0).square().sum())
    level = math.sqrt(errors / total) if total else 0.0
    text = f"all outputs: expected a relative error of at most {CASE['bound']:.3g}, got {level:.3g}"
    return answer(not level <= CASE["bound"], text)


def check_nonfinite(run):
    index, where = CASE["output"], tuple(CASE["where"])
    got = run.call().tensors[index]
    g, w = float(real(got)[where]), float(real(run.want[index])[where])
    if CASE["mechanism"] == "flushed":
        bad = g == 0 and w != 0
    elif CASE["mechanism"] == "zero_sign":
        bad = g == w == 0 and math.copysign(1, g) != math.copysign(1, w)
    else:
        bad = kind_of(g) != kind_of(w)
    return answer(bad, f"output {index} at {list(where)}: got {g:g}, expected {w:g}")


def check_shape(run):
    from embedded.comparing import same_structure

    outcome = run.call()
    a, b = [tuple(t.shape) for t in outcome.tensors], [tuple(t.shape) for t in run.want]
    differs = a != b or not same_structure(outcome.skeleton, run.skeleton)
    return answer(
        differs, f"got shapes {a} in {outcome.skeleton}, expected {b} in {run.skeleton} (whole output)"
    )


def check_raises(run):
    """`run` is a function here: the constructor may be what raises."""
    try:
        run().call()
    except CannotRun:
        raise
    except Exception as e:
        kind, said = type(e).__name__, (str(e).strip().splitlines() or [""])[0]
        if kind not in CASE["reason"] and said[:40] not in CASE["reason"]:
            raise CannotRun(f"the candidate raises {kind} ({said}), the verdict saw something else") from e
        return answer(True, f"the call: expected a result, got {kind}: {said}")
    return answer(False, "the call: expected a result, got one")


def check_crashes(run):
    command = [sys.executable, "-I", os.path.abspath(__file__), "--call", *(["--control"] if CONTROL else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode > 0:
        raise CannotRun((done.stderr.strip().splitlines() or ["the call in a second process failed"])[-1])
    how = f"signal {-done.returncode}" if done.returncode else "a result"
    return answer(done.returncode < 0, f"the call in a second process: expected a result, got {how}")


def check_gradient(run):
    name = CASE["gradient"]
    want = run.true_grads.get(name)
    got = run.call(upstream=[None if u is None else u.to(DEVICE) for u in run.upstream()]).grads.get(name)
    if want is None:
        raise CannotRun(f"the reference has no gradient for {name} here")
    if got is None or CASE["mechanism"] == "missing_gradient":
        return answer(
            got is None, f"gradient of {name}: expected one, got {'none' if got is None else 'one'}"
        )
    if CASE["mechanism"] == "shape":
        a, b = tuple(got.shape), tuple(want.shape)
        return answer(a != b, f"gradient of {name}: expected shape {b}, got {a}")
    return measured(run, got, want, f"gradient of {name}")


def check_repeats(run):
    from embedded.calling import stir

    first = [t.clone() for t in run.call().tensors]
    for k in range(2, CASE["calls"] + 1):
        stir(3, torch.device(DEVICE))
        for i, (a, b) in enumerate(zip(first, run.call().tensors, strict=True)):
            if not same_bytes(a, b):
                changed = (a != b).nonzero()
                where = changed[0].tolist() if len(changed) else []
                g, w = b[tuple(where)].item(), a[tuple(where)].item()
                return answer(True, f"output {i} at {where}: got {g} at call {k}, expected {w} as at call 1")
    return answer(False, f"{CASE['calls']} calls on the same inputs: expected the same bytes, got them")


def check_process(run):
    command = [sys.executable, "-I", os.path.abspath(__file__), "--digest"]
    command += ["--control"] if CONTROL else []
    runs = [subprocess.run(command, capture_output=True, text=True) for _ in range(CASE["calls"])]
    if any(r.returncode for r in runs):
        raise CannotRun("the call in a second process failed")
    digests = {r.stdout.split()[-1] for r in runs}
    return answer(
        len(digests) > 1, f"all outputs: expected the same bytes in {len(runs)} processes, got {len(digests)}"
    )


def check_aliasing(run):
    first = run.call()
    report, _ = first.describe(False)
    shared = [
        f"output {i} with {a}"
        for i, meta in enumerate(report["meta"])
        for a in meta["aliases"]
        if a not in CASE["allowed"].get(str(i), [])
    ]
    kept = [t.clone() for t in first.tensors]
    run.inputs = map_tensors(run.inputs, lambda t: t + 1 if t.is_floating_point() else t)
    run.call()
    later = [i for i, (a, b) in enumerate(zip(kept, first.tensors, strict=True)) if not same_bytes(a, b)]
    text = f"got shared memory: {shared}, and outputs {later} that changed in a later call; expected neither"
    return answer(bool(shared or later), text)


def check_overwritten(run):
    from embedded.structure import flatten

    before = flatten(cast(run.inputs, run.dtype))[0]
    after = run.call().inputs
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if not same_bytes(a, b)]
    changed = [i for i in changed if i not in CASE["written"]]
    return answer(bool(changed), f"expected the inputs as they were, got others at positions {changed}")


def check_mode(run):
    if DEVICE != "cuda":
        raise CannotRun("streams and graphs need a CUDA device")
    plain = [t.clone() for t in run.call().tensors]
    other = run.call(mode=CASE["mechanism"]).tensors
    bad = [i for i, (a, b) in enumerate(zip(plain, other, strict=True)) if not same_bytes(a, b)]
    return answer(bool(bad), f"expected the bytes of a plain call, got others in outputs {bad}")


def check_placement(run):
    outcome = run.call()
    got = [
        (str(t.dtype), device.split(":")[0], t.is_contiguous())
        for t, device in zip(outcome.tensors, outcome.devices, strict=True)
    ]
    want = [(str(t.dtype), DEVICE, t.is_contiguous()) for t in run.want]
    bad = [
        i
        for i, (a, b) in enumerate(zip(got, want, strict=True))
        if a[:2] != b[:2] or (b[2] and not a[2] and outcome.tensors[i].shape == run.want[i].shape)
    ]
    return answer(bool(bad), f"outputs {bad}: got (dtype, device, contiguous) {got}, expected {want}")


def check_guards(run):
    overrun = run.call().overrun
    return answer(bool(overrun), f"expected no access outside the buffers, got {overrun}")


def turned(t):
    """All but the first and last element in reverse order."""
    flat = t.reshape(-1).clone()
    flat[1:-1] = flat[1:-1].flip(0)
    return flat.reshape(t.shape)


def check_stale(run):
    """Other values are written into the tensors of an earlier call; a fresh process says what is right."""
    from embedded.structure import flatten

    asked = flatten(cast(run.inputs, run.dtype))[0]
    left = iter([turned(t) if i in CASE["turned"] else t for i, t in enumerate(asked)])
    earlier = run.candidate.prepared(map_tensors(cast(run.inputs, run.dtype), lambda t: next(left)))
    with torch._C._EnableTorchFunction():
        outcome = earlier.again(earlier.once(), [t.contiguous() for t in asked])
    command = [sys.executable, "-I", os.path.abspath(__file__), "--digest", *(["--control"] * CONTROL)]
    fresh = subprocess.run(command, capture_output=True, text=True)
    if fresh.returncode:
        raise CannotRun("the call in a second process failed")
    expected, got = fresh.stdout.split()[-1], digest(outcome.tensors)
    return answer(expected != got, f"all outputs: expected bytes {expected[:12]}, got {got[:12]}")


def check_decoy(run):
    """Kernels store marks instead of what they computed; what comes out as before was never theirs."""
    from embedded.structure import bytes_of

    if EXECUTOR != "interpreter":
        raise CannotRun("only interpreted kernels can be made to store marks")
    plain = run.call()
    marked = run.call(taint=True)
    shares = [
        (a != b).any(1).double().mean().item() if a.shape == b.shape else 1.0
        for a, b in zip(map(bytes_of, plain.tensors), map(bytes_of, marked.tensors), strict=True)
    ]
    few = bool(plain.launches) and max(shares) < CASE["bound"]
    return answer(
        few, f"expected outputs of the launched kernels, got {max(shares):.1%} that depends on them"
    )


def check_resources(run):
    from embedded.executors.resources import KernelResource, exceeded, resources

    run.call()
    name, target = CASE["kernel"]
    found = [KernelResource(**row) for row in resources(target)]
    if not CONTROL and not [k for k in found if k.name == name and not k.error]:
        raise CannotRun(f"{name} cannot be compiled for {target} here")
    too_much = [m for k in found if not k.error for m in exceeded(k)]
    for k in found:
        print(k)
    return answer(bool(too_much), f"{name} on {target}: expected to fit, got {too_much or 'that'}")


def main():
    sys.meta_path.insert(0, Embedded(EMBEDDED))
    torch.set_num_threads(1)
    if "--call" in sys.argv or "--digest" in sys.argv:
        print(digest(Run().call().tensors))
        return 0
    check = globals()[f"check_{CASE['check']}"]
    if CASE["check"] in ("raises", "crashes"):
        return check(Run)
    run = Run()
    with torch._C.DisableTorchFunction():
        return check(run)


EMBEDDED = ""  # @EMBEDDED@

if __name__ == "__main__":
    try:
        status = main()
    except Exception as e:
        what = str(e) if isinstance(e, CannotRun) else f"{type(e).__name__}: {e}"
        print(f"this machine cannot run the counterexample: {what}")
        status = 2
    sys.exit(status)
