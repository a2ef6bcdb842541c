"""The suspect's side: a loop that answers requests, in the process where the candidate lives.

Everything the loop needs is bound to names of this module before the candidate's source is
read, so that a candidate which patches torch, json, os or time disturbs itself only. The loop
works with torch functions switched to plain tensors (`_plain`), so neither the pretended CUDA
of the interpreter nor a candidate's own tensor subclass is in the way.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from json import JSONDecoder, JSONEncoder
from mmap import MAP_SHARED, PROT_READ, PROT_WRITE, mmap
from time import perf_counter
from types import ModuleType
from typing import Any

import torch

from lethe.verifier import calling, entry, executors, failures, poison, sandbox
from lethe.verifier.channel import ALIGN, DTYPES, FRAME, MAGIC, MAX_JSON
from lethe.verifier.executors import accesses, libraries
from lethe.verifier.executors.resources import clear_records
from lethe.verifier.executors.resources import resources as _resources
from lethe.verifier.sandbox import Isolation, Limits
from lethe.verifier.sites import substitute as _substitute
from lethe.verifier.structure import StructureError
from lethe.verifier.structure import flatten as _flatten
from lethe.verifier.structure import unflatten as _unflatten
from lethe.verifier.verdict import Status
from lethe.verifier.waiting import sleep_while_waiting

_encode = JSONEncoder(allow_nan=False, separators=(",", ":")).encode
_decode = JSONDecoder().decode
_clock, _exit, _close, _print_exception = perf_counter, os._exit, os.close, sys.excepthook
_frombuffer, _plain = torch.frombuffer, torch._C.DisableTorchFunction
_uint8 = torch.uint8
_dtypes = {name: getattr(torch, name) for name in DTYPES}
_names = {dtype: name for name, dtype in _dtypes.items()}
_seed, _seed_cuda = torch.default_generator.manual_seed, torch.cuda.manual_seed_all
_T = torch.Tensor
_copy, _reshape, _view, _contiguous = _T.copy_, _T.reshape, _T.view, _T.contiguous
_as_strided = _T.as_strided
_resolve_conj, _resolve_neg, _to_cpu, _detach = _T.resolve_conj, _T.resolve_neg, _T.cpu, _T.detach
_reserved, _allocated = torch.cuda.memory_reserved, torch.cuda.memory_allocated
_empty_cache = torch.cuda.empty_cache

UNUSED_BYTES = 256 << 20
"""GPU memory that no tensor uses and a suspect may yet hold between requests; others share the device."""


class Harness(Exception):
    """The harness, not the candidate, cannot go on."""


class Wire:
    """The suspect's end of the channel."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._receive, self._send = self._socket.recvmsg, self._socket.sendall
        self._space = socket.CMSG_SPACE(2 * 4)
        self._nonce = 0
        self.asked: mmap | None = None
        self.answers: list[mmap] = []
        self._offset = 0

    def _exactly(self, count: int, fds: list[int]) -> bytes:
        got = b""
        while len(got) < count:
            data, ancillary, _, _ = self._receive(count - len(got), self._space)
            for _, _, packed in ancillary:
                fds.extend(memoryview(packed).cast("i"))
            if not data:
                _exit(0)
            got += data
        return got

    def receive(self) -> dict[str, Any]:
        """The next request; maps the arena that comes with it."""
        fds: list[int] = []
        magic, self._nonce, length = FRAME.unpack(self._exactly(FRAME.size, fds))
        if magic != MAGIC:
            _exit(71)
        request: dict[str, Any] = _decode(self._exactly(length, fds).decode())
        if request.get("asked"):
            self.asked = mmap(fds[0], request["asked"], MAP_SHARED, PROT_READ)
        elif "size" in request:
            self.answers.append(mmap(fds[0], request["size"], MAP_SHARED, PROT_READ | PROT_WRITE))
        for fd in fds:
            _close(fd)
        if "op" in request:
            del self.answers[:-1]
            self._offset = 0
        return request

    def send(self, value: dict[str, Any]) -> None:
        body = _encode(value).encode()
        if len(body) > MAX_JSON:
            raise StructureError("a structure too large to describe")
        self._send(FRAME.pack(MAGIC, self._nonce, len(body)) + body)

    def tensors(self, metas: list[list[Any]]) -> list[torch.Tensor]:
        """The request's tensors, as contiguous views of its arena, which is read-only."""
        out = []
        for dtype, shape, _, _, offset in metas:
            count = _dtypes[dtype].itemsize
            for n in shape:
                count *= n
            if count == 0:
                out.append(torch.empty(shape, dtype=_dtypes[dtype]))
            else:
                assert self.asked is not None
                raw = _frombuffer(self.asked, dtype=_uint8, count=count, offset=offset)
                out.append(_reshape(_view(raw, _dtypes[dtype]), shape))
        return out

    def place(self, tensors: list[torch.Tensor]) -> list[list[Any]]:
        """Copy `tensors` into the answer's arenas, asking for a further one when they are full."""
        metas = []
        for t in tensors:
            shape, stride, name = list(t.shape), list(t.stride()), _names[t.dtype]
            size = t.numel() * t.element_size()
            if not self.answers or self._offset + size > len(self.answers[-1]):
                self.send({"grow": max(size, ALIGN)})
                self.receive()
                self._offset = 0
            if size:
                # A contiguous tensor may still carry odd strides in dimensions of size 1: lay it flat anew.
                dense = _contiguous(_to_cpu(_resolve_neg(_resolve_conj(_detach(t)))))
                flat = _view(_as_strided(dense, (dense.numel(),), (1,)), _uint8)
                _copy(_frombuffer(self.answers[-1], dtype=_uint8, count=size, offset=self._offset), flat)
            metas.append([name, shape, stride, len(self.answers) - 1, self._offset])
            self._offset += -(-size // ALIGN) * ALIGN
        return metas


class Loop:
    """State of one suspect: its module, the constructed candidate, what it holds for the judge."""

    def __init__(self, wire: Wire, executor: str, limits: Limits) -> None:
        self.wire = wire
        self.executor = executor
        self.limits = limits
        self.device = torch.device("cpu")
        self.ledger = poison.Ledger()
        self.module: ModuleType | None = None
        self.source = self.path = self.entry = self.kind = ""
        self.sizes: dict[str, int] = {}
        self.target: Callable[..., Any] | None = None
        self.held: dict[str, Any] = {}
        self.files: frozenset[str] = frozenset()
        self.call: calling.Call | None = None

    def serve(self) -> None:
        operations = {
            "load": self.load,
            "build": self.build,
            "update": self.update,
            "run": self.run,
            "read": self.read,
            "resources": self.resources,
        }
        failure = _no_failure if self.executor == "cuda" else executors.is_executor_failure
        classify, sticky = failures.classify, failures.is_sticky
        while True:
            with _plain():
                request = self.wire.receive()
                stage = request["op"]
                tensors = self.wire.tensors(request.get("tensors", []))
            try:
                answer = operations[stage](request, tensors)
                with _plain():
                    self.wire.send({"ok": True, **answer})
                    self._release_device()
                continue
            except entry.Malformed as e:
                status, message, lost = Status.MALFORMED_CANDIDATE, str(e), False
            except Harness as e:
                status, message, lost = Status.HARNESS_FAILED, str(e), False
            except BaseException as e:
                status, message = classify(e, stage, failure)
                lost = sticky(e)
                _print_exception(type(e), e, e.__traceback__)
            finally:
                self.ledger.active = False
            with _plain():
                self.wire.send({"ok": False, "status": status, "message": message, "lost": lost})
            if lost:
                _exit(72)

    # ------------------------------------------------------------ load

    def load(self, request: dict[str, Any], _: list[torch.Tensor]) -> dict[str, Any]:
        begun = _clock()
        try:
            executors.install(self.executor)
            poison.install(self.ledger)
            if self.executor == "interpreter":
                accesses.watch(self.ledger.saw_load)
        except Exception as e:
            raise Harness(f"the {self.executor} executor could not be installed: {e!r}") from e
        if self.executor == "cuda":
            self._take_device()
        self.source, self.entry, self.kind = request["source"], request["entry"], request["kind"]
        self.path = os.path.join(os.getcwd(), "candidate.py")
        self.files = libraries.mapped()
        self._execute({})
        found = entry.definitions(self.module)
        return {"entry": self.entry, **found, "elapsed": _clock() - begun}

    def _take_device(self) -> None:
        try:
            self.device = torch.device("cuda", 0)
            sleep_while_waiting()
            _, total = torch.cuda.mem_get_info(self.device)
            torch.cuda.set_per_process_memory_fraction(
                min(1.0, self.limits.memory_bytes / total), self.device
            )
        except RuntimeError as e:
            raise Harness(f"the CUDA device cannot be had: {failures.first_line(e)}") from e

    def _release_device(self) -> None:
        """After an answer: what fails here fails the next request too, and is that one's to tell."""
        if self.executor == "cuda":
            with suppress(RuntimeError):
                if _reserved() - _allocated() > UNUSED_BYTES:
                    _empty_cache()

    def _execute(self, sizes: dict[str, int]) -> None:
        """Run the candidate's source from a real file, as module ``candidate``."""
        try:
            text = _substitute(self.source, sizes) if sizes else self.source
        except ValueError as e:
            raise Harness(str(e)) from e
        with open(self.path, "w", encoding="utf-8", errors="surrogatepass") as f:
            f.write(text)
        code = entry.compiled(text, self.path)
        self.module = None
        module = entry.fresh_module(self.path)
        exec(code, module.__dict__)
        entry.require_entry(module, self.entry, self.kind)
        self.module, self.sizes = module, sizes

    # ------------------------------------------------------------ build

    def build(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> dict[str, Any]:
        self._need_source()
        self.held.clear()
        self.target = None
        if request["sizes"] != self.sizes:
            self._execute(request["sizes"])
        made = getattr(self.module, self.entry)
        _seed(request["seed"])
        if self.executor == "cuda":
            _seed_cuda(request["seed"])
        if self.kind == "function":
            self.target = made
            return {"tensors": [], "names": [], "copied": [], "unmatched": [], "parameters": []}
        given = [entry.clone(t, self.device) for t in tensors[: request["given"]]]
        init = _unflatten(given, request["init"])
        self.ledger.begin()
        self.ledger.active = True
        model = made(**init) if isinstance(init, dict) else made(*init)
        self.ledger.active = False
        if not isinstance(model, torch.nn.Module):
            raise entry.Malformed(f"{self.entry} builds a {type(model).__name__}, not an nn.Module")
        state = dict(zip(request["state"], tensors[request["given"] :], strict=True))
        dtype = _dtypes[request["dtype"]]
        self.target = model = entry.settle(model, self.device, dtype, request["train"])
        with _plain():
            copied = entry.copy_state(model, state)
            own = entry.state_of(model)
            self.ledger.keep({entry.storage_address(t): f"param:{n}" for n, t in own.items()})
            return {
                "tensors": self.wire.place(list(own.values())),
                "names": list(own),
                "copied": copied,
                "unmatched": [n for n in state if n not in copied],
                "parameters": [n for n, t in own.items() if isinstance(t, torch.nn.Parameter)],
            }

    def update(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> dict[str, Any]:
        """Write values into the constructed candidate's own tensors, as an optimiser's step does."""
        if not isinstance(self.target, torch.nn.Module):
            raise Harness("there is no module whose tensors could be written")
        with _plain():
            state = dict(zip(request["state"], tensors, strict=True))
            return {"copied": entry.copy_state(self.target, state)}

    def _need_source(self) -> None:
        if self.module is None:
            raise Harness("load was not asked for, or failed")

    # ------------------------------------------------------------ run

    def run(self, request: dict[str, Any], tensors: list[torch.Tensor]) -> dict[str, Any]:
        if self.target is None:
            raise Harness("build was not asked for, or failed")
        given, later = request["given"], request["given"] + request["then"]
        call = calling.Call(
            target=self.target,
            device=self.device,
            ledger=self.ledger,
            strides=[m[2] for m in request["tensors"]],
            leads=request["leads"],
            given=tensors[:given],
            skeleton=request["inputs"],
            upstream=calling.spread_upstream(request["upstream"], tensors[later:]),
            guard=request["guard"],
            mode=request["mode"],
            taint=request["taint"],
            configuration=request["configuration"],
        )
        self.call = call
        reports = []
        for k in range(request["times"]):
            if k:
                with _plain():
                    calling.stir(request["between"], self.device)
            outcome = call.once()
            reports.append(self._report(outcome, request["need_inputs_after"]))
            if k == 0 and request["hold"] is not None:
                self.held[request["hold"]] = outcome.outputs
        if later > given:
            reports.append(self._report(call.again(outcome, tensors[given:later]), False))
        return {"reports": reports}

    def _report(self, outcome: calling.Outcome, need_inputs: bool) -> dict[str, Any]:
        with _plain():
            report, wanted = outcome.describe(need_inputs)
            report["tensors"] = self.wire.place(wanted)
        return report

    def read(self, request: dict[str, Any], _: list[torch.Tensor]) -> dict[str, Any]:
        if request["name"] not in self.held:
            raise Harness(f"no outputs are held under {request['name']!r}")
        with _plain():
            tensors, skeleton = _flatten(self.held[request["name"]])
            return {"tensors": self.wire.place(tensors), "outputs": skeleton}

    def resources(self, request: dict[str, Any], _: list[torch.Tensor]) -> dict[str, Any]:
        if not request["traced"]:
            return {"resources": _resources(request["target"])}
        if self.call is None or self.executor != "cuda":
            raise Harness("a trace needs a GPU and a call to repeat")
        return {"resources": libraries.launched(self.call.once, self.files)}


FIRST_USES = (
    "triton.compiler",
    "triton.backends.nvidia.compiler",
    "triton.runtime.autotuner",
    "triton.experimental.gluon.nvidia.hopper",
    "torch.fx.experimental.symbolic_shapes",
)
"""Modules that a launch or a backward pass imports the first time: half a second of a core or more."""


def _no_failure(_: BaseException) -> None:
    """A device executes everything; what fails there is the candidate's."""


def preload() -> None:
    """In the server, before any fork: import, install and touch what every suspect would.

    A server for the interpreter serves nothing else, so its executor is installed here once.
    """
    for name in ("numpy", "triton", "triton.language", "triton.runtime.interpreter"):
        importlib.import_module(name)
    if os.path.exists("/dev/nvidiactl") and os.environ.get("TRITON_INTERPRET") != "1":
        _preload_compiler()
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    _frombuffer(b"\0" * 8, dtype=_uint8)
    if os.environ.get("TRITON_INTERPRET") == "1":
        from lethe.verifier.warm import warm

        executors.install("interpreter")
        warm()
        executors.reset_launches()
        clear_records()


def _preload_compiler() -> None:
    """What every suspect would load or work out at its first launch and its first backward pass: Triton's
    compiler, the digest of its own files, its helper for the CUDA driver, for which it runs a C compiler.

    Loading the helper touches no device, so a fork is still possible. Where it cannot be built, suspects try.
    """
    for name in FIRST_USES:
        with suppress(ImportError):
            importlib.import_module(name)
    with suppress(Exception):
        importlib.import_module("triton.runtime.cache").triton_key()
    with suppress(Exception):
        helper = importlib.import_module("triton.backends.nvidia.driver").CudaUtils
        helper()
        # one object for all, but Triton compiles and loads it again at each mention, in each new cache
        helper.__init__ = lambda self: None


def main(fd: int, executor: str, limits: Limits, scratch: str, cache: str, report: Isolation) -> None:
    """Body of the candidate's process, inside its sandbox; never returns."""
    os.environ.update(
        HOME=scratch,
        TMPDIR=scratch,
        XDG_CACHE_HOME=cache,
        TRITON_CACHE_DIR=os.path.join(cache, "triton"),
        TORCH_EXTENSIONS_DIR=os.path.join(cache, "torch_extensions"),
        TORCHINDUCTOR_CACHE_DIR=os.path.join(cache, "inductor"),
        TORCHINDUCTOR_COMPILE_THREADS="1",  # or it starts a process a core, more than the limits allow
        CUDA_CACHE_PATH=os.path.join(cache, "nv"),
        OMP_NUM_THREADS=str(limits.threads),
    )
    if executor != "cuda":
        # autograd's engine counts the devices at the first backward, and CUDA aborts under these limits
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    tempfile.tempdir = None
    os.chdir(scratch)
    sys.path.insert(0, scratch)
    # even one: torch's thread pool does not outlive a fork, and its first use makes it anew. Two first uses
    # at once, by autograd's own thread and by the one that called it, would end the process
    torch.set_num_threads(limits.threads)
    # as the reference runs its convolutions (`oracle.pinned_backends`): what torch's own may round or vary is
    # nobody's breach, unless the candidate asks for it
    cudnn = torch.backends.cudnn
    cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = False, True, False
    sandbox.set_limits(limits, executor, report)
    wire = Wire(fd)
    wire.send({"isolation": report})
    Loop(wire, executor, limits).serve()
