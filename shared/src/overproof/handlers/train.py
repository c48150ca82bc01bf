"""Task `networks`: trains the networks of several seeds on one set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from overproof.catalog.protocols import PROTOCOLS
from overproof.core.ids import UnitId
from overproof.core.spec import DatasetSpec, JobSpec, NetworkBody
from overproof.handlers.inputs import load_dataset, rows_at_once
from overproof.handlers.resume import run_to_end
from overproof.runtime.handler import JobContext, JobHandler, UnitOutput

if TYPE_CHECKING:
    from torch import Tensor

    from overproof.ml.datasets.base import Dataset


class NetworksHandler(JobHandler):
    """Units that differ only in their seeds, trained side by side.

    By the protocol, but for what a distilled set brings along: soft labels and a learning rate.

    Files `weights`: safetensors of the network with its normalisation; `predictions`: safetensors
    with `label` and `prediction` (N,) int64 over the test set.
    Result: `total`, `clean_correct`, `clean_accuracy`, `train_accuracy` (on the training images
    as they are), `loss` (of the last epoch), `steps`, `network` (name and parameters, for those
    who load the weights); `cost.seconds`, an equal share of the job's.
    """

    def run(self, job: JobSpec, context: JobContext) -> Mapping[UnitId, UnitOutput]:
        """Train and evaluate one network for each unit."""
        from safetensors.torch import save_file

        from overproof.ml.checkpoints import save_weights
        from overproof.ml.devices import device_facts, pick_device
        from overproof.ml.models.base import build
        from overproof.ml.train.evaluation import predictions_of
        from overproof.ml.train.loop import Training
        from overproof.ml.train.means import choose_means

        bodies = [NetworkBody.model_validate(unit.body) for unit in job.units]
        body = bodies[0]
        device = pick_device(context.device)
        test_set = load_dataset(body.test_set, context)
        images, labels, targets, learning_rate = _training_set(body, test_set, context)
        recipe = PROTOCOLS.load(body.protocol.name)(
            PROTOCOLS.resolve(body.protocol), mirrors=test_set.mirrors
        )
        if learning_rate is not None:
            recipe = replace(recipe, learning_rate=learning_rate)
            context.note(learning_rate=learning_rate)
        networks = [build(body.network, test_set.facts, each.seed) for each in bodies]
        means, reason = choose_means(
            networks[0].network,
            test_set.facts,
            device=device,
            images=len(images),
            epochs=recipe.epochs,
        )
        context.note(**device_facts(device), means=means.value, means_reason=reason)
        training = Training(
            networks,
            [each.seed for each in bodies],
            images,
            targets,
            recipe,
            means=means,
            device=device,
        )
        seconds = run_to_end(training, context)

        outputs = {}
        rows = rows_at_once(context, pixels=test_set.test_images[0, 0].numel())
        for unit, network, loss in zip(
            job.units, training.networks(), training.losses, strict=True
        ):
            predictions = predictions_of(
                network, test_set.test_images, device=device, rows_at_once=rows
            )
            on_training = predictions_of(network, images, device=device, rows_at_once=rows)
            correct = int((predictions == test_set.test_labels).sum())
            files = {
                "weights": context.workdir / f"{unit.id}-weights.safetensors",
                "predictions": context.workdir / f"{unit.id}-predictions.safetensors",
            }
            save_weights(network, files["weights"])
            save_file(
                {"label": test_set.test_labels, "prediction": predictions}, files["predictions"]
            )
            result = {
                "total": len(predictions),
                "clean_correct": correct,
                "clean_accuracy": correct / len(predictions),
                "train_accuracy": float((on_training == labels).float().mean()),
                "loss": loss,
                "steps": training.total_steps,
                "network": body.network.model_dump(mode="json"),
                "cost": {"seconds": seconds / len(job.units)},
            }
            outputs[UnitId(unit.id)] = UnitOutput(result=result, files=files)
        return outputs


def _training_set(
    body: NetworkBody, test_set: Dataset, context: JobContext
) -> tuple[Tensor, Tensor, Tensor, float | None]:
    """What the networks see: a distilled set, or a data set's training part.

    Returns:
        Images, class indices, what is trained towards (class indices or probabilities), and the
        learning rate that came with the images, None without one.
    """
    from overproof.ml.distill.base import DistilledSet

    if isinstance(body.training_set, DatasetSpec):
        whole = load_dataset(body.training_set, context)
        return whole.train_images, whole.train_labels, whole.train_labels, None
    path = context.input(UnitId(body.training_set), "images")
    made = DistilledSet.read(path, test_set.facts).decoded()
    return made.images, made.labels, made.targets, made.learning_rate
