"""Tasks `imported-sets`, `-labels` and `-networks`: take up what somebody brought."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from overproof.core.ids import UnitId
from overproof.core.spec import ImportedLabelsBody, ImportedNetworkBody, ImportedSetBody, JobSpec
from overproof.handlers.inputs import load_dataset, rows_at_once
from overproof.runtime.handler import JobContext, JobHandler, UnitOutput


class ImportedSetHandler(JobHandler):
    """One unit, one distilled set; file and result as of `SynthesisHandler`, nothing computed."""

    def run(self, job: JobSpec, context: JobContext) -> Mapping[UnitId, UnitOutput]:
        """Check the set against the images that it stands for."""
        from overproof.ml.distill.base import DistilledSet

        (unit,) = job.units
        body = ImportedSetBody.model_validate(unit.body)
        facts = load_dataset(body.dataset, context).facts
        distilled = DistilledSet.read(context.asset("sets", body.imported), facts)
        path = context.workdir / "images.safetensors"
        distilled.write(path)
        result = {
            "images": len(distilled.images),
            "training_images": len(distilled.images) * distilled.canvas_factor**2,
            "steps": 0,
            "loss": None,
            "cost": {"seconds": 0.0},
        }
        return {UnitId(unit.id): UnitOutput(result=result, files={"images": path})}


class ImportedLabelsHandler(JobHandler):
    """One unit, the labels of one set; file as of `SoftLabelsHandler`, nothing computed.

    Result: `steps`, 0; `cost.seconds`, 0.
    """

    def run(self, job: JobSpec, context: JobContext) -> Mapping[UnitId, UnitOutput]:
        """Hand the labels on; who trains with them checks that they fit the set."""
        (unit,) = job.units
        body = ImportedLabelsBody.model_validate(unit.body)
        path = context.workdir / "labels.safetensors"
        shutil.copyfile(context.asset("labels", body.labels), path)
        result = {"steps": 0, "cost": {"seconds": 0.0}}
        return {UnitId(unit.id): UnitOutput(result=result, files={"labels": path})}


class ImportedNetworkHandler(JobHandler):
    """One unit, one network; files as of `NetworksHandler`.

    Result: `total`, `clean_correct`, `clean_accuracy`, `network`, `classes`; `cost.seconds` is 0,
    since training it was somebody else's.
    """

    def run(self, job: JobSpec, context: JobContext) -> Mapping[UnitId, UnitOutput]:
        """Load the weights, all of them, and predict the test set."""
        from safetensors.torch import save_file

        from overproof.ml.checkpoints import save_weights
        from overproof.ml.devices import device_facts, pick_device
        from overproof.ml.models.stored import load_network
        from overproof.ml.train.evaluation import predictions_of

        (unit,) = job.units
        body = ImportedNetworkBody.model_validate(unit.body)
        device = pick_device(context.device)
        context.note(**device_facts(device))
        test_set = load_dataset(body.test_set, context)
        stored = context.asset("weights", body.weights)
        network = load_network(body.network, test_set.facts, stored)
        predictions = predictions_of(
            network.to(device),
            test_set.test_images,
            device=device,
            rows_at_once=rows_at_once(context, pixels=test_set.test_images[0, 0].numel()),
        )
        correct = int((predictions == test_set.test_labels).sum())
        files = {
            "weights": context.workdir / "weights.safetensors",
            "predictions": context.workdir / "predictions.safetensors",
        }
        save_weights(network, files["weights"])
        save_file({"label": test_set.test_labels, "prediction": predictions}, files["predictions"])
        result = {
            "total": len(predictions),
            "clean_correct": correct,
            "clean_accuracy": correct / len(predictions),
            "network": body.network.model_dump(mode="json"),
            "classes": test_set.classes,
            "cost": {"seconds": 0.0},
        }
        return {UnitId(unit.id): UnitOutput(result=result, files=files)}
