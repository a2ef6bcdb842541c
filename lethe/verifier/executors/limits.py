"""What Triton's interpreter cannot do: recognised in an exception, or in the source beforehand."""

from __future__ import annotations

import ast
import re

TRITON_RANGE = ((3, 6), (3, 9))
"""First and last Triton release whose interpreter the repairs of this package were tested against."""

_BY_MESSAGE: tuple[tuple[str, str], ...] = (
    (r"inline_asm not supported", "inline assembly cannot run in Triton's interpreter"),
    (
        r"extern_elementwise not supported|libdevice function .* has no host equivalent",
        "a libdevice or external function used here has no counterpart in Triton's interpreter",
    ),
    (
        r"'InterpreterBuilder' object has no attribute '?(\w+)",
        "an operation of Triton is missing from its interpreter",
    ),
    (
        r"(?i)unsupported (semantic|rmwOp|padding|type|data type)",
        "an operation or data type is not supported by Triton's interpreter",
    ),
    (r"numpy data itemsize .* exceeds dtype", "Triton's interpreter lost track of a value's type"),
    (r"numpy boolean subtract", "Triton's interpreter cannot subtract booleans"),
    (r"grid must have at most 3 dimensions", "Triton's interpreter takes grids of at most three dimensions"),
    (
        r"Cannot call @triton\.jit'd outside of the scope of a kernel",
        "the kernel calls a function that was compiled for the device and cannot be interpreted",
    ),
    (
        r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available"
        r"|from the 'CUDA' backend|Cannot get CUDA generator|0 active drivers"
        r"|CUDA_HOME environment variable is not set",
        "the candidate asks for a CUDA feature that only a real device has",
    ),
    (r"the Triton driver call .* needs a GPU", "the candidate asks the Triton driver for a real device"),
)
"""Pattern of an exception's text, and the sentence to report."""


_TYPE_NAME = r"triton\.language\.\w+|fp\d\w*|u?int\d+|void"


def _chain(error: BaseException) -> list[BaseException]:
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        current = current.__cause__ or current.__context__
    return seen


def is_executor_failure(error: BaseException) -> str | None:
    """One sentence when `error` shows a limit of the interpreter, None when it is the kernel's own.

    The whole chain of causes is read: Triton wraps what a kernel raises in ``InterpreterError``.
    """
    for link in _chain(error):
        if type(link).__name__ == "NoDeviceError":
            return str(link)
        text = str(link)
        for pattern, sentence in _BY_MESSAGE:
            if re.search(pattern, text):
                return sentence
        if isinstance(link, KeyError) and re.fullmatch(_TYPE_NAME, str(link.args[0]) if link.args else ""):
            return "Triton's interpreter does not know a data type used here"
    return None


_BY_FEATURE: tuple[tuple[str, str], ...] = (
    (r"\binline_asm_elementwise\b", "inline assembly cannot run in the interpreter"),
    (r"\bfloat8\w*|\bfp8e?\w*\b", "fp8 conversions of the interpreter are wrong"),
    (r"\bdot_scaled\b", "scaled dot products of the interpreter differ from the device between versions"),
    (r"\btriton\.experimental\.gluon\b", "Gluon kernels cannot run in the interpreter"),
    (r"\b(globaltimer|smid|num_threads|num_warps)\s*\(", "device registers have no value in the interpreter"),
    (r"\bextern_elementwise\b", "external device functions cannot run in the interpreter"),
)
"""Pattern of code (comments and strings left out), and why the interpreter is not trusted with it."""


def _code_only(source: str) -> str:
    """The names, attributes and imports of `source`, without comments and string constants."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.unparse(tree)


def triton_version() -> tuple[int, int]:
    """Major and minor version of the installed triton."""
    from importlib.metadata import version

    major, minor = version("triton").split(".")[:2]
    return int(major), int(minor)


def unfaithful(source: str, dtype: str, *, nonfinite: bool = False) -> list[str]:
    """Reasons why the interpreter may not be trusted with the candidate `source` at `dtype`.

    An empty list means that results may be judged. `dtype` is a torch dtype name (``"bfloat16"``);
    `nonfinite` asks about inputs that hold NaN as well. Raises nothing.
    """
    from lethe.verifier.executors.libdevice import unsupported_names

    code = _code_only(source)
    reasons = [reason for pattern, reason in _BY_FEATURE if re.search(pattern, code)]
    missing = unsupported_names(code)
    if missing:
        reasons.append(f"libdevice functions without a counterpart in the interpreter: {', '.join(missing)}")
    if dtype.startswith("float8"):
        reasons.append("fp8 conversions of the interpreter are wrong")
    if nonfinite and re.search(r"\bargm(ax|in)\b|\breturn_indices\b", code):
        reasons.append("which index argmax and argmin return for NaN depends on the device's reduction order")
    first, last = TRITON_RANGE
    if not first <= triton_version() <= last:
        tested = f"{first[0]}.{first[1]} to {last[0]}.{last[1]}"
        reasons.append(f"the interpreter's repairs are tested for triton {tested} only")
    return list(dict.fromkeys(reasons))
