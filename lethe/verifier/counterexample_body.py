"""@TITLE@

Imports torch only (and triton, if the candidate does). Exit status 1: the defect shows; 0: it does
not; 2: this machine cannot run it.
"""

import base64
import importlib.util
import json
import os
import sys
import tempfile
import zlib

CASE: dict = json.loads(r"""@CASE@""")

import torch  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() and CASE["language"] != "cpp" else "cpu"
if DEVICE == "cpu" and CASE["language"] == "triton":
    os.environ["TRITON_INTERPRET"] = "1"


def poisoned(allocate):
    """Memory that nobody writes shows as NaN instead of whatever was there before."""

    def allocated(*args, **kwargs):
        t = allocate(*args, **kwargs)
        if t.is_floating_point() and t.device.type != "meta":
            with torch.no_grad():
                t.fill_(float("nan"))
        return t

    return allocated


for holder, name in (
    (torch, "empty"),
    (torch, "empty_like"),
    (torch, "empty_strided"),
    (torch.Tensor, "new_empty"),
):
    setattr(holder, name, poisoned(getattr(holder, name)))


def first_config(configs, key=None, **_):
    """Stands in for triton.autotune where no driver is active: launches the first configuration."""
    import triton

    class First(triton.runtime.KernelInterface):
        def __init__(self, fn):
            self.fn, self.arg_names = fn, fn.arg_names

        def run(self, *args, **kwargs):
            return self.fn.run(*args, **{**configs[0].all_kwargs(), **kwargs})

    return First


def load(name, source):
    """Import source text from a real file, as triton.jit needs one."""
    path = os.path.join(tempfile.mkdtemp(), name + ".py")
    with open(path, "w") as f:
        f.write(source)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def tensor(record):
    raw = bytearray(zlib.decompress(base64.b64decode(record["data"])))
    dtype = getattr(torch, record["dtype"])
    flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    t = flat.reshape(record["shape"]).to(DEVICE)
    if record["stride"] is not None:
        t = torch.empty_strided(record["shape"], record["stride"], dtype=dtype, device=DEVICE).copy_(t)
    return t


def value(node):
    if isinstance(node, dict) and "tensor" in node:
        return tensor(node["tensor"])
    if isinstance(node, dict) and "tuple" in node:
        return tuple(value(v) for v in node["tuple"])
    if isinstance(node, dict) and "dict" in node:
        return {k: value(v) for k, v in node["dict"].items()}
    if isinstance(node, list):
        return [value(v) for v in node]
    return node


def flat(x):
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, dict):
        x = list(x.values())
    return [t for y in x for t in flat(y)] if isinstance(x, (list, tuple)) else []


def reference_and_candidate():
    if DEVICE == "cpu" and CASE["language"] == "triton":
        import triton

        triton.autotune = first_config
    ref = load("reference", CASE["reference"])
    torch.manual_seed(CASE["seed"])
    init = ref.get_init_inputs() if hasattr(ref, "get_init_inputs") else []
    torch.manual_seed(CASE["seed"])
    model = (ref.Model(**init) if isinstance(init, dict) else ref.Model(*init)).to(DEVICE).eval()
    CASE["init"] = init
    cand = load("candidate", CASE["candidate"])
    if CASE["kind"] == "function":
        return model, getattr(cand, CASE["entry"])
    torch.manual_seed(CASE["seed"])
    entry = getattr(cand, CASE["entry"])
    mine = (entry(**init) if isinstance(init, dict) else entry(*init)).to(DEVICE).eval()
    state = model.state_dict()
    with torch.no_grad():
        for name, t in mine.state_dict().items():
            if name in state and state[name].shape == t.shape:
                t.copy_(state[name])
    return model, mine


def wide(x):
    if isinstance(x, torch.Tensor):
        return x.double() if x.is_floating_point() else x
    return [wide(v) for v in x] if isinstance(x, (list, tuple)) else x


def kind_of(v):
    return "nan" if v != v else "+inf" if v == float("inf") else "-inf" if v == float("-inf") else "finite"


def show(defect, text):
    print(text)
    print("reason:", CASE["reason"])
    print("the defect shows" if defect else "the defect does not show here")
    return 1 if defect else 0


def fresh(inputs):
    return [t.clone() if isinstance(t, torch.Tensor) else t for t in inputs]


def main():
    model, mine = reference_and_candidate()
    inputs = value(CASE["inputs"])
    mechanism, where, index = CASE["mechanism"], tuple(CASE["where"]), CASE["output"]
    if CASE["gradient"]:
        return gradient(model, mine, inputs)
    with torch.no_grad():
        want = flat(model(*fresh(inputs)))
        before = [t.clone() for t in flat(inputs)]
        try:
            got = flat(mine(*inputs))
        except Exception as e:
            return show(
                mechanism == "rejects",
                f"raises {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}",
            )
        if mechanism == "rejects":
            return show(False, "the call succeeds")
        if mechanism == "input_overwritten":
            changed = [
                i for i, (a, b) in enumerate(zip(before, flat(inputs), strict=True)) if not torch.equal(a, b)
            ]
            return show(bool(changed), f"inputs changed by the call: {changed}")
        if mechanism in ("nondeterministic", "process"):
            first = [t.clone() for t in got]
            again = [flat(mine(*fresh(value(CASE["inputs"])))) for _ in range(12)]
            differs = any(not torch.equal(a, b) for outs in again for a, b in zip(first, outs, strict=True))
            return show(differs, f"12 more calls on the same inputs differ: {differs}")
        if mechanism == "aliasing":
            kept = [t.clone() for t in got]
            mine(*[t.flip(0) if isinstance(t, torch.Tensor) else t for t in fresh(inputs)])
            shared = [i for i, (a, b) in enumerate(zip(kept, got, strict=True)) if not torch.equal(a, b)]
            ptrs = {t.untyped_storage().data_ptr() for t in flat(inputs)}
            shared += [i for i, t in enumerate(got) if t.untyped_storage().data_ptr() in ptrs]
            return show(bool(shared), f"outputs that changed later or share an input's memory: {shared}")
        if mechanism in ("structure", "shape"):
            a, b = [tuple(t.shape) for t in got], [tuple(t.shape) for t in want]
            return show(a != b, f"shapes {a}, expected {b}")
        if mechanism in ("dtype", "layout", "device"):
            a = [(str(t.dtype), t.is_contiguous(), t.device.type) for t in got]
            b = [(str(t.dtype), t.is_contiguous(), t.device.type) for t in want]
            return show(a != b, f"got {a}, expected {b}")
        g, w = float(got[index][where]), float(want[index][where])
        if CASE["gate"] in ("EXC-01", "EXC-02"):
            bad = (g == 0) != (w == 0) if mechanism == "flushed" else kind_of(g) != kind_of(w)
            return show(bad, f"output {index} at {list(where)}: got {g:g}, expected {w:g}")
        torch.set_default_dtype(torch.float64)
        exact = float(flat(model.double()(*wide(value(CASE["inputs"]))))[index][where])
        error = abs(g - exact)
        bad = not error <= CASE["bound"]
        return show(
            bad,
            f"output {index} at {list(where)}: got {g:.9g}, expected {exact:.9g}, error {error:.3g} "
            f"against a bound of {CASE['bound']:.3g}",
        )


def gradient(model, mine, inputs):
    upstream = value(CASE["upstream"])

    def grads(f, xs):
        leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in flat(xs)]
        outs = flat(f(*leaves))
        pairs = [
            (o, u.to(o.dtype))
            for o, u in zip(outs, upstream, strict=True)
            if u is not None and o.requires_grad
        ]
        named = {f"input:{i}": t for i, t in enumerate(t for t in leaves if t.requires_grad)}
        if isinstance(f, torch.nn.Module):
            named |= {f"param:{n}": p for n, p in f.named_parameters()}
        found = torch.autograd.grad(
            [o for o, _ in pairs], list(named.values()), [u for _, u in pairs], allow_unused=True
        )
        return dict(zip(named, found, strict=True))

    got = grads(mine, inputs)
    torch.set_default_dtype(torch.float64)
    want = grads(model.double(), wide(inputs))
    name, where = CASE["gradient"], tuple(CASE["where"])
    if got.get(name) is None:
        return show(want.get(name) is not None, f"no gradient reaches {name}")
    g, w = float(got[name][where]), float(want[name][where])
    return show(
        not abs(g - w) <= (CASE["bound"] or 0.0),
        f"gradient of {name} at {list(where)}: got {g:.9g}, expected {w:.9g}",
    )


if __name__ == "__main__":
    try:
        status = main()
    except ImportError as e:
        print(f"this machine cannot run the counterexample: {e}")
        status = 2
    sys.exit(status)
