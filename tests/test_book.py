"""The book's sources: every file of the table of contents exists, every number comes from a file."""

from __future__ import annotations

import re

import jinja2
import pytest
import yaml

from lethe.paper import numbers, published
from lethe.provenance import ROOT

BOOK = ROOT / "book"
PAGES = sorted(BOOK.glob("*.md"))
IDS = [p.stem for p in PAGES]

SUBSTITUTION = re.compile(r"\{\{.*?\}\}", re.DOTALL)
NOT_PROSE = (
    re.compile(r"^```(?:console|python|\{include\}|\{raw\}).*?^```", re.DOTALL | re.MULTILINE),
    re.compile(r"^:\w+:.*$", re.MULTILINE),
    re.compile(r"\$\$.*?\$\$", re.DOTALL),
    re.compile(r"\$[^$]+\$"),
    re.compile(r"`[^`]*`"),
    re.compile(r"^\(.*\)=$", re.MULTILINE),
    SUBSTITUTION,
)
TYPED = re.compile(r"\d+(?:\.\d+)?\s*%|\b\d+(?:\.\d+)?\s*(?:ms|µs|us|×)(?!\w)|\b\d+\.\d+\b|\b\d{1,3},\d{3}\b")
"""What a result looks like: percentages, decimals, thousands, times and speed-ups."""
DEFINITIONS = {"95%": "the confidence level of every interval"}


def prose(text: str) -> str:
    for pattern in NOT_PROSE:
        text = pattern.sub(" ", text)
    return text


def contents() -> list[str]:
    toc = yaml.safe_load((BOOK / "_toc.yml").read_text(encoding="utf-8"))
    return [toc["root"], *(c["file"] for part in toc["parts"] for c in part["chapters"])]


def test_the_table_of_contents_and_the_files_agree():
    listed = set(contents())
    notebooks = {f"notebooks/{p.stem}" for p in (ROOT / "notebooks").glob("*.py")}
    assert listed == {p.stem for p in PAGES} | notebooks


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_no_number_is_typed(page):
    typed = [t for t in TYPED.findall(prose(page.read_text(encoding="utf-8"))) if t not in DEFINITIONS]
    assert typed == []


def test_the_check_for_typed_numbers_can_fail():
    assert TYPED.findall(prose("It is 62.1% of 2,638 in 0.86 ms.")) == ["62.1%", "2,638", "0.86 ms"]
    assert TYPED.findall(prose("It is {{ pub.audit.any_violation_rate }} of $0.5$ and `1.5`.")) == []


class Anything(dict):
    """Stands for what the notebooks glue: any experiment, any name."""

    def __missing__(self, key):
        return Anything()

    def __getattr__(self, key):
        return Anything()

    def __str__(self):
        return "0"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_published_substitutions_resolve(page):
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    context = {"pub": numbers.formatted(numbers.published()), "here": Anything(), "rules": Anything()}
    for expression in SUBSTITUTION.findall(page.read_text(encoding="utf-8")):
        text = environment.from_string(expression).render(**context)
        assert text and "{" not in text, expression


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_glued_names_exist_in_the_notebook(page):
    for experiment, name in re.findall(r"\bhere\.(\w+)\.(\w+)", page.read_text(encoding="utf-8")):
        notebook = (ROOT / "notebooks" / f"{experiment}.py").read_text(encoding="utf-8")
        headline = (ROOT / "lethe" / "paper" / "tables.py").read_text(encoding="utf-8")
        assert f'"{name}"' in notebook or f'"{name}"' in headline, f"{experiment}.{name} is never glued"


def test_every_published_table_is_shown_once():
    text = "\n".join(p.read_text(encoding="utf-8") for p in PAGES)
    for name in published.tables(numbers.published()):
        assert text.count(f"generated/pub_{name}.md") == 1, name


def test_chapters_without_measurements_say_so():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if "generated/pub_" in text and "here." not in text:
            assert "class: warning" in text and "not part of this build" in text, page.stem


def test_references_are_cited_and_known():
    known = set(
        re.findall(r"^@\w+\{(\w+),", (BOOK / "references.bib").read_text(encoding="utf-8"), re.MULTILINE)
    )
    text = "\n".join(p.read_text(encoding="utf-8") for p in PAGES)
    cited = {key for group in re.findall(r"\{cite:\w\}`([^`]+)`", text) for key in group.split(",")}
    assert cited == known


def test_the_book_speaks_of_the_project_alone():
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        assert not re.search(r"/(?:home|root|work|tmp)/", page.read_text(encoding="utf-8")), page.name


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_no_substitution_stands_where_it_would_be_printed_as_it_is(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"`[^`\n]*\{\{[^`\n]*`", text)
    assert not re.search(r"\$[^$\n]*\{\{[^$\n]*\$", text)
