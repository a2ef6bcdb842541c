"""How numbers are printed."""

from __future__ import annotations

import pytest

from lethe.paper.numbers import formatted, number, percent


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0.6213, "62.1%"),
        (0.4105, "41.1%"),
        (0.4375, "43.8%"),
        (1.0, "100.0%"),
        (0.0, "0.0%"),
        (0.0005, "0.1%"),
    ],
)
def test_rates_round_half_up_as_a_person_does(rate, text):
    assert percent(rate) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2638, "2,638"),
        (7, "7"),
        (0.00329, "0.00329"),
        (2.853e-07, "2.853·10⁻⁷"),
        (7e-16, "7·10⁻¹⁶"),
        (1.1e9, "1.1·10⁹"),
        (0.0003, "3·10⁻⁴"),
        (38.7, "38.7"),
        (0.0, "0"),
    ],
)
def test_numbers_are_written_for_people(value, text):
    assert number(value) == text


def test_a_rate_is_known_by_its_key():
    assert formatted({"any_violation_rate": 0.5, "per_class_rate": {"conv": 0.25}, "pin": 0.5}) == {
        "any_violation_rate": "50.0%",
        "per_class_rate": {"conv": "25.0%"},
        "pin": "0.5",
    }


def test_lists_missing_values_and_truth_values_print():
    assert formatted({"a": [1, 2000], "b": None, "c": True}) == {"a": ["1", "2,000"], "b": "–", "c": "yes"}
