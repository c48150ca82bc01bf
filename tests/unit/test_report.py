from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from plotly.offline import get_plotlyjs

from overproof.core.ids import GroupId
from overproof.core.semantics import Semantics
from overproof.report.figures import clean_against_robust, drop_rate_by_images
from overproof.report.figures import robust_accuracy_by_epsilon as by_epsilon
from overproof.report.page import Provenance, render_page
from overproof.report.standings import WHOLE_SET, Measured, standings, to_csv, to_json, to_records
from overproof.report.text import breakers, cells, doubts, notes, percent
from overproof.results.views import LeaderboardRow, MetricRow, MetricScope

CELL = "pgd-linf@8/255:S2"


def a_number(
    metric: str,
    slice_name: str,
    value: float | None,
    *,
    half: float = 0.02,
    present: int = 3,
    reason: str | None = None,
) -> MetricRow:
    return MetricRow(
        scope=MetricScope.DISTILLED_SET,
        subject="grp-1",
        metric=metric,
        slice=slice_name,
        value=value,
        unit="fraction",
        present=present,
        expected=3,
        low=None if value is None else value - half,
        high=None if value is None else value + half,
        reason=reason,
    )


def a_group(
    method: str | None = "distribution-matching",
    images_per_class: int = 10,
    *,
    clean: float = 0.8,
    robust: float = 0.2,
    epsilons: Sequence[str] = ("8/255",),
    replaced: Sequence[MetricRow] = (),
    **over: Any,
) -> LeaderboardRow:
    numbers = [a_number("clean-accuracy", "", clean)]
    for epsilon in epsilons:
        for semantics, shift in (("S1", 0.1), ("S2", 0.0), ("S3", 0.05)):
            name = f"pgd-linf@{epsilon}:{semantics}"
            value = robust + shift
            numbers.append(a_number("robust-accuracy", name, value))
            numbers.append(a_number("drop-rate", name, (clean - value) / clean))
    group = {
        "dataset": {"name": "digits", "version": "bundled-1"},
        "method": method and {"name": method, "params": {}},
        "matching_network": method and {"name": "convnet", "params": {}},
        "images_per_class": images_per_class if method else None,
        "network": {"name": "convnet", "params": {}},
        "protocol": {"name": "dsa", "params": {"epochs": 20}},
        **over,
    }
    metrics = {(row.metric, row.slice): row for row in [*numbers, *replaced]}
    return LeaderboardRow(GroupId("grp-1"), group, metrics)


def a_doubt(where: str, share: float = 0.5, reason: str | None = None) -> MetricRow:
    return a_number("reliability-warning", where, share, reason=reason)


def test_a_group_gives_one_row_for_each_cell_under_the_asked_semantics() -> None:
    rows = standings([a_group(epsilons=("2/255", "8/255"))], Semantics.S1)

    assert [(row.epsilon, row.semantics) for row in rows] == [("2/255", "S1"), ("8/255", "S1")]
    assert rows[0].robust.value == pytest.approx(0.3)
    assert rows[0].clean.value == 0.8


def test_labels_show_what_differs_from_defaults() -> None:
    [row] = standings([a_group(matching_network={"name": "resnet-18", "params": {}})])

    assert row.method == "distribution-matching on resnet-18"
    assert row.protocol == "dsa[epochs=20]"


def test_labels_tell_the_teacher_once() -> None:
    teacher = {"name": "convnet", "params": {"norm": "batch"}}
    sets: dict[str, Any] = {
        "method": "squeeze-recover-relabel",
        "matching_network": None,
        "teacher": teacher,
    }
    [hard] = standings([a_group(**sets)])
    [soft] = standings([a_group(**sets, protocol={"name": "fkd", "params": {}})])

    assert hard.method == "squeeze-recover-relabel by convnet[norm=batch]"
    assert hard.protocol == "dsa[epochs=20]"
    assert soft.method == "squeeze-recover-relabel"
    assert soft.protocol == "fkd by convnet[norm=batch]"


def test_labels_that_came_with_an_imported_set_have_no_teacher_here() -> None:
    replayed = {"name": "fkd", "params": {}}

    [row] = standings([a_group("imported", matching_network=None, protocol=replayed)])

    assert row.method == "imported"
    assert row.protocol == "fkd by labels of the set"


def test_versions_and_subsets_tell_data_sets_apart() -> None:
    dataset = {"name": "cifar-10", "version": "1f2e3d4c5b6a", "subset_per_class": 50}

    [row] = standings([a_group(dataset=dataset)])

    assert row.dataset == "cifar-10@1f2e3d4c (50 a class)"


def test_most_robust_is_first_and_undefined_last() -> None:
    low, high = a_group("distribution-matching", robust=0.1), a_group("random", robust=0.3)
    undefined = a_group("herding", replaced=[a_number("robust-accuracy", CELL, None)])

    rows = standings([undefined, low, high])

    assert [row.method for row in rows] == ["random", "distribution-matching", "herding"]


def test_group_without_attacks_keeps_its_clean_accuracy() -> None:
    [row] = standings([a_group(epsilons=())])

    assert row.cell is None
    assert row.clean.value == 0.8
    assert row.robust.reason == "not attacked"
    assert notes([row]) == []


@pytest.mark.parametrize(
    ("measured", "text"),
    [
        (Measured(0.712, 0.698, 0.726, 3, 3, None), "71.2 ± 1.4"),
        (Measured(0.712, None, None, 1, 1, None), "71.2"),
        (Measured(-0.05, None, None, 1, 1, None), "-5.0"),
        (Measured(0.712, 0.698, 0.726, 2, 3, "1 of 3 not yet measured"), "71.2 ± 1.4 *"),
        (Measured(None, None, None, 0, 3, "clean accuracy is 0"), "-"),
    ],
)
def test_percent_shows_half_width_and_marks_incomplete_numbers(
    measured: Measured, text: str
) -> None:
    assert percent(measured) == text


def test_notes_say_why_a_number_is_incomplete() -> None:
    incomplete = a_number("drop-rate", CELL, 0.5, present=2, reason="1 of 3 clean accuracy is 0")

    rows = standings([a_group(replaced=[incomplete])])

    assert notes(rows) == [
        "distribution-matching, 10 a class: 1 of 3 clean accuracy is 0 (pgd-linf@8/255)"
    ]
    assert cells(rows[0])[-1] == "50.0 ± 2.0 *"


def test_doubtful_numbers_are_marked_with_the_doubts_that_concern_them() -> None:
    group = a_group(
        epsilons=("4/255", "8/255"),
        replaced=[
            a_doubt("weak-cross-entropy:linf@8/255"),
            a_doubt("flat-gradients:pgd-linf@8/255", reason="gradients of zero on 3.0%"),
            a_doubt("flat-gradients:pgd-linf@4/255", share=0.0),
            a_doubt("square-gain:autoattack-linf@4/255"),
        ],
    )

    small, large = standings([group])

    assert (small.warnings, large.warnings) == ("", "flat-gradients; weak-cross-entropy")
    assert cells(small)[-2] == "20.0 ± 2.0"
    assert cells(large)[-2] == "20.0 ± 2.0 !"
    assert doubts([small, large]) == [
        "distribution-matching, 10 a class: flat-gradients:pgd-linf@8/255: "
        "gradients of zero on 3.0%",
        "distribution-matching, 10 a class: weak-cross-entropy:linf@8/255: weak-cross-entropy",
    ]
    assert [record["warnings"] for record in to_records([small, large])] == [
        "",
        "flat-gradients; weak-cross-entropy",
    ]


def test_worst_cases_come_first_and_name_the_attacks_that_made_them() -> None:
    worst, envelope = "worst-case-linf@8/255", "envelope-linf@8/255"
    group = a_group(
        epsilons=("4/255", "8/255"),
        replaced=[
            a_number("robust-accuracy", f"{worst}:S2", 0.15),
            a_number("robust-accuracy", f"{envelope}:S2", 0.1),
            a_number("breaking-share", "pgd-linf@8/255", 0.9),
            a_number("breaking-share", "autoattack-linf@8/255", 1.0),
            a_number("breaking-share", "cw-linf@8/255", 1.0),
            a_number("breaking-share", "fgsm-linf@8/255", 0.0),
            a_number("breaking-share", "pgd-linf@4/255", 0.3),
            a_number("breaking-share", "pgd-l2@8/255", 0.2),
        ],
    )

    rows = standings([group])

    assert [row.cell for row in rows] == [worst, envelope, "pgd-linf@4/255", "pgd-linf@8/255"]
    assert list(rows[0].broken_by.items()) == [
        ("autoattack-linf", 1.0),
        ("cw-linf", 1.0),
        ("pgd-linf", 0.9),
        ("fgsm-linf", 0.0),
    ]
    assert [dict(row.broken_by) for row in rows[1:]] == [{}, {}, {}]
    assert breakers(rows) == [
        f"distribution-matching, 10 a class: {worst}: of what any attack broke, "
        "100.0% by autoattack-linf, cw-linf; 90.0% by pgd-linf"
    ]


def test_invalid_cells_show_no_number_and_why() -> None:
    invalid = a_number("robust-accuracy", CELL, None, present=0, reason="3 of 3 non-finite logits")

    [row] = standings([a_group(replaced=[invalid])])

    assert cells(row)[-2] == "-"
    assert (
        notes([row])[0]
        == "distribution-matching, 10 a class: 3 of 3 non-finite logits (pgd-linf@8/255)"
    )


def test_page_tells_doubts_and_worst_cases() -> None:
    group = a_group(
        replaced=[
            a_doubt("near-chance", reason="clean accuracy 12.0% is near chance, 10.0%"),
            a_number("robust-accuracy", "worst-case-linf@8/255:S2", 0.15),
            a_number("breaking-share", "pgd-linf@8/255", 0.9),
        ]
    )

    page = render_page("Doubtful", standings([group]), Provenance(), generated_at=0.0)

    assert "near-chance: clean accuracy 12.0% is near chance, 10.0%" in page
    assert "20.0 ± 2.0 !" in page
    assert "90.0% by pgd-linf" in page


def test_csv_and_json_hold_the_same_fractions() -> None:
    rows = standings([a_group(), a_group(None, clean=0.9, robust=0.5)])

    from_csv = list(csv.DictReader(io.StringIO(to_csv(rows))))
    from_json = json.loads(to_json(rows))

    assert [float(record["robust"]) for record in from_csv] == [0.5, 0.2]
    assert [record["robust"] for record in from_json] == [0.5, 0.2]
    assert [record["images_per_class"] for record in from_json] == [None, 10]
    assert set(from_csv[0]) == set(from_json[0])


def test_drop_rate_figure_has_a_line_a_method_and_the_whole_set_dashed() -> None:
    rows = standings(
        [
            a_group("distribution-matching", 1),
            a_group("distribution-matching", 10),
            a_group("random", 1),
            a_group(None, robust=0.6),
        ]
    )

    figure = drop_rate_by_images(rows)

    lines = {trace.name: trace for trace in figure.data}
    assert set(lines) == {"distribution-matching", "random", WHOLE_SET}
    assert list(lines["distribution-matching"].x) == ["1", "10"]
    assert list(lines["distribution-matching"].y) == pytest.approx([0.75, 0.75])
    assert lines["distribution-matching"].error_y.array == pytest.approx((0.02, 0.02))
    assert lines[WHOLE_SET].line.dash == "dash"
    assert list(lines[WHOLE_SET].y) == pytest.approx([0.25, 0.25])


def test_menu_shows_one_cell_at_a_time() -> None:
    rows = standings(
        [
            a_group("distribution-matching", 1, epsilons=("2/255", "8/255")),
            a_group("distribution-matching", 10),
        ]
    )

    figure = drop_rate_by_images(rows)

    [menu] = figure.layout.updatemenus
    assert [button.label for button in menu.buttons] == ["pgd-linf@2/255", "pgd-linf@8/255"]
    assert [trace.visible for trace in figure.data] == [True, False]
    assert menu.buttons[1].args[0] == {"visible": [False, True]}


def test_accuracy_is_drawn_over_growing_budgets_from_the_clean_one() -> None:
    figure = by_epsilon(standings([a_group(epsilons=("8/255", "2/255", "4/255"))]))

    [line] = figure.data
    assert list(line.x) == pytest.approx([0, 2 / 255, 4 / 255, 8 / 255])
    assert list(line.y) == pytest.approx([0.8, 0.2, 0.2, 0.2])
    assert list(figure.layout.xaxis.ticktext) == ["0", "2/255", "4/255", "8/255"]


def test_scatter_leaves_out_undefined_points() -> None:
    undefined = a_group("herding", replaced=[a_number("robust-accuracy", CELL, None)])

    figure = clean_against_robust(standings([undefined, a_group("distribution-matching")]))

    assert [(trace.x, trace.y) for trace in figure.data] == [((0.8,), (0.2,))]


def test_page_escapes_what_users_write() -> None:
    evil = '</script><script>alert("x")</script>'
    rows = standings([a_group(), a_group(dataset={"name": evil, "version": "v" * 8})])

    page = render_page(
        evil, rows, Provenance(facts={evil: evil}, spec={"name": evil}), generated_at=0.0
    )

    assert '<script>alert("x")' not in page
    assert "&lt;script&gt;alert" in page


def test_page_needs_no_network_and_carries_its_data() -> None:
    rows = standings([a_group()])

    page = render_page("Digits", rows, Provenance(), generated_at=0.0)

    own = page.replace(get_plotlyjs(), "")
    assert len(own) < len(page)
    assert not re.search(r"""(src|href)=["'](https?:)?//""", own)
    [encoded] = re.findall(r"data:text/csv;base64,([^\"]+)", page)
    assert base64.b64decode(encoded).decode() == to_csv(rows)
    assert "1970-01-01" in page
    assert "75.0 ± 2.0" in page


def test_page_without_results_says_so() -> None:
    assert "No results yet" in render_page("Empty", [], Provenance(), generated_at=0.0)
