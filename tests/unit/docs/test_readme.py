"""The first page: its figures are the benchmarks' own, and it explains itself without numbers of proposals."""

from __future__ import annotations

import re

from docs.reference.pages import figures


def test_its_figures_are_those_of_the_results() -> None:
    """If not: python -m docs.reference.pages.figures"""
    assert figures.in_readme() == figures.in_results()


def test_no_other_figure_with_a_unit_is_on_the_page() -> None:
    text = figures.README.read_text()
    for generated in figures.in_readme().values():
        text = text.replace(generated, "")

    assert re.findall(r"\d[\d.,]* ?(?:ms|s|MB|/s)\b", text) == []


def test_it_needs_no_number_of_a_proposal() -> None:
    assert "PIP" not in figures.README.read_text()
