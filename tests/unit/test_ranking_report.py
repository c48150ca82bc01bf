"""Rankings as tables, files and a figure; what must not be ranked together."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from overproof.errors import InvalidSpec
from overproof.report import ranking
from overproof.report.figures import score_against_drop_rate
from overproof.report.page import Provenance, render_page
from overproof.report.ranking import Ranked
from overproof.report.standings import Measured

CONDITIONS = {
    "data set": "digits",
    "images per class": "10 a class",
    "network": "convnet",
    "protocol": "dsa",
    "protocol with hard labels": "ddk",
    "protocol of the whole set": "ddk[epochs=200]",
}
CELL = "pgd-linf@8/255"


def measured(value: float | None, half: float | None = None) -> Measured:
    if value is None:
        return Measured(None, None, None, 0, 3, "3 of 3 networks of random not yet measured")
    low, high = (None, None) if half is None else (value - half, value + half)
    return Measured(value, low, high, 3, 3, None)


def a_set(method: str, score: float | None = 0.3, drop: float | None = None, **over: Any) -> Ranked:
    values: dict[str, Any] = {
        "comparison_id": f"cmp-{method}",
        "group_id": f"grp-{method}",
        "method": method,
        "conditions": CONDITIONS,
        "hlr": measured(0.3, 0.02),
        "ior": measured(None if score is None else 0.2),
        "score": measured(score, 0.004),
        "augmentation_score": measured(0.31),
        "drop_rates": {} if drop is None else {CELL: measured(drop, 0.05)},
    }
    return Ranked(**values | over)


def test_places_follow_the_score_and_equal_ones_share_theirs() -> None:
    rows = [a_set("a", 0.2), a_set("b", 0.4), a_set("c", None), a_set("d", 0.2)]

    assert ranking.places(rows) == [2, 1, None, 2]


def test_cells_show_percent_and_scores_with_their_intervals() -> None:
    [cells] = ranking.cells([a_set("dm", 0.2754)])

    assert cells == ["1", "dm", "30.0 ± 2.0", "20.0", "0.2754 ± 0.0040", "0.3100"]
    assert len(cells) == len(ranking.HEADERS)


@pytest.mark.parametrize("name", CONDITIONS)
def test_rows_under_different_conditions_are_not_ranked_together(name: str) -> None:
    other = a_set("b", conditions=CONDITIONS | {name: "another"})

    with pytest.raises(InvalidSpec) as caught:
        ranking.places([a_set("a"), other])
    assert caught.value.faults == (f"{name}: {CONDITIONS[name]} and another",)
    benches = ranking.by_bench([a_set("a"), other, a_set("c")])
    assert list(benches) == [a_set("a").bench, other.bench]


def test_missing_numbers_are_explained() -> None:
    assert ranking.notes([a_set("dm", None)]) == ["dm: 3 of 3 networks of random not yet measured"]
    assert ranking.cells([a_set("dm", None)])[0][3:5] == ["-", "-"]


def test_csv_holds_fractions_and_the_weights_of_the_scores() -> None:
    [record] = csv.DictReader(io.StringIO(ranking.to_csv([a_set("dm", 0.3, weight=0.9)])))

    assert float(record["hlr"]) == 0.3
    assert float(record["score_low"]) == pytest.approx(0.296)
    assert (record["weight"], record["images_per_class"]) == ("0.9", "10 a class")
    assert ranking.to_csv([]).strip() == ""


def test_front_of_the_figure_is_what_nothing_beats() -> None:
    rows = [a_set("a", 0.2, 0.5), a_set("b", 0.4, 0.8), a_set("c", 0.1, 0.6), a_set("d", 0.9)]

    figure = score_against_drop_rate(rows)

    lines = {trace.name: trace for trace in figure.data}
    assert set(lines) == {"a", "b", "c", "Pareto front"}  # d was not attacked
    assert list(lines["Pareto front"].x) == [0.5, 0.8]
    assert list(lines["Pareto front"].y) == [0.2, 0.4]
    assert lines["a"].error_y.array == pytest.approx((0.004,))


def test_page_ranks_each_bench_and_says_why_they_are_apart() -> None:
    other = a_set("<b>", 0.2, 0.4, conditions=CONDITIONS | {"images per class": "1 a class"})

    page = render_page("t", [], Provenance(), generated_at=0.0, ranked=[a_set("a", 0.3), other])

    assert "Ranked apart, since they differ in images per class: 10 a class and 1 a class." in page
    assert page.count("<th>DDRS</th>") == 2
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert page.count("Informativeness against robustness") == 1
    assert "<h2>Ranking</h2>" not in render_page("t", [], Provenance(), generated_at=0.0)
