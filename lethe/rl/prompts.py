"""What a language model is asked, and what it should have answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lethe.audit.corpora import Row

SYSTEM = "You edit kernels. Answer with one edit that may make the kernel faster."


def ask(row: Row) -> str:
    """The prompt: the kernel's functions, without its imports, and the form of an edit."""
    return (
        f"{SYSTEM}\n\nKernel:\n{body(row.candidate.source)}\n\n"
        "Edit (copy a line of the kernel after SEARCH, write its replacement after =======):\n"
    )


def chat(tokenizer: Any) -> Callable[[Row], str]:
    """`ask` in the form that an instruction-tuned model expects, where its tokenizer knows one."""
    if getattr(tokenizer, "chat_template", None) is None:
        return ask

    def asked(row: Row) -> str:
        return str(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": ask(row)}], tokenize=False, add_generation_prompt=True
            )
        )

    return asked


def body(source: str) -> str:
    """A kernel's text from its first definition on: imports cost tokens and are never worth an edit."""
    lines = source.split("\n")
    first = next((i for i, line in enumerate(lines) if line.startswith(("@", "def ", "class ", "CPP"))), 0)
    return "\n".join(lines[first:]).strip("\n")
