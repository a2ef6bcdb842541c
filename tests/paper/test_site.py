"""The checks on the rendered book, each tripped once."""

from __future__ import annotations

import pytest

from lethe.paper.site import check

CLEAN = '<html><body id="top"><h1 id="a">A</h1><a href="b.html#b">b</a><pre>{{ x }}</pre></body></html>'


@pytest.fixture
def html(tmp_path):
    (tmp_path / "index.html").write_text(CLEAN)
    (tmp_path / "b.html").write_text('<p id="b">b</p><a href="https://example.org/">elsewhere</a>')
    return tmp_path


def test_a_clean_book_has_no_problem(html):
    assert list(check(html)) == []


@pytest.mark.parametrize(
    ("markup", "problem"),
    [
        (
            '<script src="https://cdn.example/x.js"></script>',
            "loads https://cdn.example/x.js over the network",
        ),
        ('<link rel="stylesheet" href="//fonts.example/f.css">', "over the network"),
        ('<a href="gone.html">x</a>', "refers to gone.html, which does not exist"),
        ('<img src="gone.svg">', "refers to gone.svg, which does not exist"),
        ('<a href="b.html#nowhere">x</a>', "no such place"),
        ("<p>{{ here.audit.rate }}</p>", "shows markup"),
        ("<p><code>{{ pub.audit.corpus }}</code></p>", "shows markup"),
        ("<p>see {ref}`sec-x`</p>", "shows markup"),
    ],
    ids=["script", "font", "page", "image", "anchor", "substitution", "substitution-in-code", "role"],
)
def test_each_problem_is_found(html, markup, problem):
    (html / "index.html").write_text(CLEAN.replace("</body>", markup + "</body>"))
    found = list(check(html))
    assert len(found) == 1 and problem in found[0]
