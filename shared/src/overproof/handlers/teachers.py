"""Task `teachers`: trains networks on the whole set that label images and are inverted."""

from __future__ import annotations

from collections.abc import Mapping

from overproof.catalog.protocols import PROTOCOLS
from overproof.core.ids import UnitId
from overproof.core.spec import JobSpec, TeacherBody
from overproof.handlers.inputs import load_dataset, rows_at_once
from overproof.handlers.resume import run_to_end
from overproof.runtime.handler import JobContext, JobHandler, UnitOutput


class TeachersHandler(JobHandler):
    """Units that differ only in their seeds, trained side by side.

    File `weights`: safetensors of the network with its normalisation.
    Result: `network` (name and parameters) and `classes`, for those who load the weights; `total`
    and `clean_accuracy` on the test set; `loss` (of the last epoch), `steps`; `cost.seconds`, an
    equal share of the job's.
    """

    def run(self, job: JobSpec, context: JobContext) -> Mapping[UnitId, UnitOutput]:
        """Train one teacher for each unit."""
        from overproof.ml.checkpoints import save_weights
        from overproof.ml.devices import device_facts, pick_device
        from overproof.ml.models.base import build
        from overproof.ml.train.evaluation import predictions_of
        from overproof.ml.train.loop import Training
        from overproof.ml.train.means import choose_means

        bodies = [TeacherBody.model_validate(unit.body) for unit in job.units]
        body = bodies[0]
        device = pick_device(context.device)
        dataset = load_dataset(body.dataset, context)
        recipe = PROTOCOLS.load(body.protocol.name)(
            PROTOCOLS.resolve(body.protocol), mirrors=dataset.mirrors
        )
        networks = [build(body.network, dataset.facts, each.seed, "teacher") for each in bodies]
        means, reason = choose_means(
            networks[0].network,
            dataset.facts,
            device=device,
            images=len(dataset.train_images),
            epochs=recipe.epochs,
        )
        context.note(**device_facts(device), means=means.value, means_reason=reason)
        training = Training(
            networks,
            [each.seed for each in bodies],
            dataset.train_images,
            dataset.train_labels,
            recipe,
            means=means,
            device=device,
        )
        seconds = run_to_end(training, context)

        outputs = {}
        rows = rows_at_once(context, pixels=dataset.test_images[0, 0].numel())
        for unit, network, loss in zip(
            job.units, training.networks(), training.losses, strict=True
        ):
            predictions = predictions_of(
                network, dataset.test_images, device=device, rows_at_once=rows
            )
            path = context.workdir / f"{unit.id}-weights.safetensors"
            save_weights(network, path)
            result = {
                "network": body.network.model_dump(mode="json"),
                "classes": dataset.classes,
                "total": len(predictions),
                "clean_accuracy": float((predictions == dataset.test_labels).float().mean()),
                "loss": loss,
                "steps": training.total_steps,
                "cost": {"seconds": seconds / len(job.units)},
            }
            outputs[UnitId(unit.id)] = UnitOutput(result=result, files={"weights": path})
        return outputs
