"""`overproof.rank`: how informative a distilled set is, from a script or notebook."""

from __future__ import annotations

import csv
import hashlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from overproof.catalog.datasets import DATASETS as CATALOG
from overproof.catalog.datasets import dataset
from overproof.catalog.models import MODELS
from overproof.core.clock import SystemClock
from overproof.core.ranking import RANKING, Role
from overproof.core.spec import AssetSpec, ExperimentSpec, RankingSpec
from overproof.errors import InvalidData, WorkerLost
from overproof.evaluation.ranking import (
    GroupRuns,
    Groups,
    hard_label_recovery,
    improvement_over_random,
    ranking_score,
)
from overproof.evaluation.robustness import SeedMean
from overproof.experiments.planner import plan
from overproof.experiments.submit import submit
from overproof.handlers.compare import ranked_groups
from overproof.local.assets import DATASETS, SETS, WEIGHTS, put_asset, target_of
from overproof.local.rank_options import RankOptions, network_of
from overproof.local.runner import LocalRunner
from overproof.results.views import Asset
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends

if TYPE_CHECKING:
    from overproof.ml.formats.content import Target


# How importing calls labels that are one class an image.
_HARD_LABELS = ("classes", "one-hot")


@dataclass(frozen=True)
class RankedSet:
    """What `rank` found.

    Attributes:
        hlr, ior, score: mean with its 95 % interval over runs; fractions, the score in [0, 1].
        hlr_deviation, ior_deviation: sample deviation over runs (denominator n − 1), None with one
            run.
        accuracies: role (`distilled`, `random`, `distilled-hard`, `whole-hard`) → run → accuracy.
        rows: one a run, with the columns of DD-Ranking, as fractions; empty where runs do not
            pair.
        experiment_id: where all of it is, for `overproof report`.
    """

    hlr: SeedMean
    ior: SeedMean
    score: SeedMean
    hlr_deviation: float | None
    ior_deviation: float | None
    accuracies: Mapping[str, Mapping[str, float]]
    rows: Sequence[Mapping[str, float]]
    experiment_id: str


def rank(
    images: Any,
    labels: Any = None,
    lr: float | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    **options: Any,
) -> RankedSet:
    """Rank a distilled set by what it teaches with hard labels and beyond random images.

    Everything runs in this process and its children, in the home folder that the environment
    names: what other rankings share with this one, such as the whole set, is trained once.

    Args:
        images: (N, C, H, W) pixels or normalised values, a tensor or an array; or a file or folder
            of published code.
        labels: (N,) classes, or (N, K) logits or probabilities; None where the path has them, or
            for images class after class. A path names a file of labels.
        lr: learning rate that the method found; searched on held-out training images without.
        config: YAML file or mapping of DD-Ranking, see `RankOptions`.
        **options: the same, in front of `config`.

    Raises:
        InvalidSpec: options that mean nothing here; all of them are listed.
        InvalidData: a set that does not fit the data set.
        WorkerLost: a job failed; the message says which and why.

    Source: NUS-HPC-AI-Lab/DD-Ranking, metrics/. Differs: no accuracy on test images decides
    anything, accuracies are fractions, and deviations have the denominator n − 1.
    """
    wanted = RankOptions.read(config, options)
    settings = Settings.from_env()
    with Backends.from_settings(settings) as backends, TemporaryDirectory() as folder:
        _add_real_images(wanted, backends, Path(folder))
        target = target_of(wanted.dataset_name, backends)
        imported = _add_set(images, labels, lr, target, backends, Path(folder))
        wanted = _checked(wanted, imported)
        spec = ExperimentSpec.model_validate(
            {
                "name": imported.name,
                "datasets": [wanted.dataset_name],
                "imported": [imported.name],
                "networks": [wanted.network],
                "protocol": wanted.own_protocol(lr),
                "ranking": RankingSpec(hard=wanted.hard_protocol(), whole=wanted.whole_protocol()),
                "teacher_protocol": {
                    "name": "squeeze",
                    "params": {"epochs": wanted.teacher_epochs},
                },
                "teacher_weights": _add_teacher(wanted, target, backends, Path(folder)),
                "seeds": range(wanted.num_eval),
            }
        )
        made = plan(spec, partial(_newest, backends), backends.repository.asset)
        submitted = submit(
            made, repository=backends.repository, bus=backends.bus, clock=SystemClock()
        )
        LocalRunner(settings, backends).run_until_finished(submitted.experiment_id)
        (row,) = backends.repository.comparisons(RANKING, submitted.experiment_id)
        groups = ranked_groups(row.comparison, backends.repository.members(row.comparison))
    found = _ranked(groups, wanted.lrs_lambda, submitted.experiment_id)
    if found.score.value is None:
        raise WorkerLost(
            f"the ranking of {imported.name} did not end: {found.score.reason}; see "
            f"`overproof status {submitted.experiment_id}`"
        )
    if wanted.save_path is not None:
        _write(found.rows, wanted.save_path)
    return found


def _ranked(groups: Groups, weight: float, experiment_id: str) -> RankedSet:
    roles = (Role.OWN, Role.RANDOM, Role.HARD, Role.WHOLE)
    runs = sorted(set.intersection(*(set(groups[role].runs) for role in roles)))
    rows = [_row(groups, run, weight) for run in runs]
    return RankedSet(
        hlr=hard_label_recovery(groups),
        ior=improvement_over_random(groups),
        score=ranking_score(groups, weight),
        hlr_deviation=_deviation([row["hard_label_recovery"] for row in rows]),
        ior_deviation=_deviation([row["improvement_over_random"] for row in rows]),
        accuracies={role.value: dict(sorted(groups[role].runs.items())) for role in roles},
        rows=rows,
        experiment_id=experiment_id,
    )


def _row(groups: Groups, run: str, weight: float) -> dict[str, float]:
    """The numbers of one run, by the functions of all runs."""
    single = {
        role: GroupRuns(member.group, {run: member.runs[run]}, 1, 1)
        for role, member in groups.items()
    }
    numbers = {
        "hard_label_recovery": hard_label_recovery(single),
        "improvement_over_random": improvement_over_random(single),
        "lrs": ranking_score(single, weight),
    }
    return {name: number.value for name, number in numbers.items() if number.value is not None}


def _deviation(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _write(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            names = ("hard_label_recovery", "improvement_over_random", "lrs")
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise InvalidData(f"{path} cannot be written: {error.strerror}") from None


# ---- what is brought -------------------------------------------------------------------------


def _newest(backends: Backends, dataset: str) -> str | None:
    asset = backends.repository.asset(DATASETS, dataset)
    return None if asset is None else asset.version


def _add_real_images(wanted: RankOptions, backends: Backends, folder: Path) -> None:
    """Pack the data set that the options name a path of, unless there is one of that name."""
    from overproof.ml.datasets.packing import pack

    name = wanted.dataset_name
    is_bundled = name in CATALOG and dataset(name).bundled_version
    if is_bundled or wanted.real_data_path is None or _newest(backends, name) is not None:
        return
    packed = folder / "dataset"
    facts = pack(name, wanted.real_data_path, packed)
    put_asset(backends, DATASETS, name, packed, facts)


def _add_set(
    images: Any,
    labels: Any,
    lr: float | None,
    target: Target,
    backends: Backends,
    folder: Path,
) -> Asset:
    from overproof.ml.formats.content import Wishes
    from overproof.ml.formats.importing import import_set
    from overproof.ml.formats.in_memory import write_arrays

    wishes = Wishes(learning_rate=lr)
    if isinstance(images, str | Path):
        path = Path(images)
        if labels is not None:
            wishes = replace(wishes, labels=Path(labels))
    else:
        path = folder / "brought.safetensors"
        write_arrays(images, labels, target.facts.classes, path)
    into = folder / "set"
    facts = import_set(path, into, target, wishes)
    with into.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return put_asset(backends, SETS, f"ranked-{digest[:12]}", into, facts)


def _checked(wanted: RankOptions, imported: Asset) -> RankOptions:
    """The options, soft labels being used where the set has them and nobody said how."""
    size = imported.facts["images_per_class"]
    if wanted.ipc is not None and wanted.ipc != size:
        raise InvalidData(f"the set has {size} images per class, ipc says {wanted.ipc}")
    if wanted.soft_label_mode is None and imported.facts["labels"] not in _HARD_LABELS:
        return wanted.model_copy(update={"soft_label_mode": "S"})
    return wanted


def _add_teacher(
    wanted: RankOptions, target: Target, backends: Backends, folder: Path
) -> AssetSpec | None:
    """The teacher in the folder of the options; None where one is to be trained."""
    from overproof.ml.formats.networks import import_network

    if wanted.teacher_dir is None or wanted.soft_label_mode is None:
        return None
    (model,) = wanted.teacher_model_names or (str(wanted.model_name),)
    candidates = [
        wanted.teacher_dir / name / model / f"ckpt_best.{suffix}"
        for name in (wanted.dataset, wanted.dataset_name)
        for suffix in ("pt", "pth")
    ]
    path = next((each for each in candidates if each.is_file()), None)
    if path is None:
        raise InvalidData(f"no teacher is at {candidates[0]}; leave out teacher_dir to train one")
    into = folder / "teacher"
    network = MODELS.canonical(network_of(model))
    facts = import_network(path, into, target, network)
    with into.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    asset = put_asset(backends, WEIGHTS, f"teacher-{digest[:12]}", into, facts)
    return AssetSpec(name=asset.name, version=asset.version)
