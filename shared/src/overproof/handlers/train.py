"""Task `networks`: trains the networks of several seeds on one set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from overproof.catalog.protocols import PROTOCOLS
from overproof.catalog.teaching import ReplayParams, TaughtParams
from overproof.core.ids import UnitId
from overproof.core.spec import DatasetSpec, JobSpec, NetworkBody
from overproof.handlers.inputs import load_dataset, rows_at_once
from overproof.handlers.resume import run_to_end
from overproof.runtime.handler import JobContext, JobHandler, UnitOutput

if TYPE_CHECKING:
    from overproof.ml.datasets.base import Dataset
    from overproof.ml.train.assembly import Assembled, TrainingSet


class NetworksHandler(JobHandler):
    """Units that differ only in their seeds, trained side by side.

    By the protocol, but for what a distilled set brings along: soft labels and a learning rate.

    Files `weights`: safetensors of the network with its normalisation; `predictions`: safetensors
    with `label` and `prediction` (N,) int64 over the test set.
    Result: `total`, `clean_correct`, `clean_accuracy`, `train_accuracy` (on the training images
    as they are), `loss` (of the last epoch), `steps`, `network` (name and parameters, for those
    who load the weights); `last_correct` and `best_correct`, right answers on the test set after
    the last epoch and after the best of `looks` (epoch → right answers), and `chosen_epoch`,
    whose weights are stored; `learning_rate` where it was searched, with `tried_rates` (rate →
    right answers on held-out images, -1 where it diverged); `cost.seconds`, an equal share of the
    job's.
    """

    def run(self, job: JobSpec, context: JobContext) -> Mapping[UnitId, UnitOutput]:
        """Train and evaluate one network for each unit."""
        from safetensors.torch import save_file

        from overproof.ml.checkpoints import save_weights
        from overproof.ml.devices import device_facts, pick_device
        from overproof.ml.train.assembly import assemble
        from overproof.ml.train.evaluation import predictions_of

        bodies = [NetworkBody.model_validate(unit.body) for unit in job.units]
        body = bodies[0]
        device = pick_device(context.device)
        test_set = load_dataset(body.test_set, context)
        params = PROTOCOLS.resolve(body.protocol)
        recipe = PROTOCOLS.load(body.protocol.name)(params, mirrors=test_set.mirrors)
        training_set = _training_set(body, test_set, context)
        # Some protocols ask a teacher only for sets that bring no soft labels of their own.
        is_asked = isinstance(params, TaughtParams) or training_set.logits is None
        if body.labels is not None and is_asked:
            labels = context.input(UnitId(body.labels), "labels")
            replays = isinstance(params, ReplayParams)
            training_set = training_set.taught(
                labels, test_set.classes, epochs=recipe.epochs if replays else None
            )
        rows = rows_at_once(context, pixels=test_set.test_images[0, 0].numel())
        assembled = assemble(
            body.network,
            [each.seed for each in bodies],
            training_set,
            recipe,
            test_set,
            device=device,
            rows_at_once=rows,
        )
        context.note(**device_facts(device), **assembled.facts)
        seconds = run_to_end(assembled.work, context)

        training = assembled.training
        searched = _searched(assembled)
        outputs = {}
        for i, (unit, network) in enumerate(zip(job.units, training.networks(), strict=True)):
            predictions = predictions_of(
                network, test_set.test_images, device=device, rows_at_once=rows
            )
            correct = int((predictions == test_set.test_labels).sum())
            on_training = training_set.examples.correct(network, device, rows)
            files = {
                "weights": context.workdir / f"{unit.id}-weights.safetensors",
                "predictions": context.workdir / f"{unit.id}-predictions.safetensors",
            }
            save_weights(network, files["weights"])
            save_file(
                {"label": test_set.test_labels, "prediction": predictions}, files["predictions"]
            )
            looks = dict(zip(training.epochs, training.correct[i].tolist(), strict=True))
            result = {
                "total": len(predictions),
                "clean_correct": correct,
                "clean_accuracy": correct / len(predictions),
                "train_accuracy": on_training / len(training_set.images),
                "loss": training.losses[i],
                "steps": training.total_steps,
                "network": body.network.model_dump(mode="json"),
                "last_correct": looks[training.epochs[-1]],
                "best_correct": max(looks.values()),
                "looks": {str(epoch): count for epoch, count in looks.items()},
                "chosen_epoch": training.epochs[int(training.chosen[i])],
                "cost": {"seconds": seconds / len(job.units)},
            }
            outputs[UnitId(unit.id)] = UnitOutput(result=result | searched, files=files)
        return outputs


def _searched(assembled: Assembled) -> dict[str, Any]:
    """What a search of the learning rate found; nothing without one."""
    from overproof.ml.train.search import SearchedTraining

    work = assembled.work
    if not isinstance(work, SearchedTraining):
        return {}
    return {"learning_rate": work.rate, "tried_rates": work.tried}


def _training_set(body: NetworkBody, test_set: Dataset, context: JobContext) -> TrainingSet:
    """What the networks see: a distilled set, or a data set's training part."""
    from overproof.ml.distill.base import DistilledSet
    from overproof.ml.train.assembly import TrainingSet

    if isinstance(body.training_set, DatasetSpec):
        whole = load_dataset(body.training_set, context)
        return TrainingSet(whole.train_images, whole.train_labels, is_whole=True)
    path = context.input(UnitId(body.training_set), "images")
    made = DistilledSet.read(path, test_set.facts).decoded()
    return TrainingSet(
        made.images, made.labels, made.logits, made.learning_rate, whitening=made.whitening
    )
