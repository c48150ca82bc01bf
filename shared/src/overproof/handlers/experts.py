"""Task `experts`: trains networks on the whole set and keeps where they were after every epoch."""

from __future__ import annotations

from collections.abc import Mapping

from overproof.core.ids import UnitId
from overproof.core.spec import ExpertsBody, JobSpec
from overproof.handlers.inputs import load_dataset
from overproof.handlers.resume import run_to_end
from overproof.runtime.handler import JobContext, JobHandler, UnitOutput


class ExpertsHandler(JobHandler):
    """Units that differ only in their seeds, trained side by side.

    File `trajectory`: safetensors with `trajectory` (epochs + 1, P) float32, the parameters at the
    start and after each epoch.
    Result: `epochs`, `parameters` (P), `loss` (of the last epoch); `cost.seconds`, an equal share
    of the job's. Checkpoints hold the trajectories so far.
    """

    def run(self, job: JobSpec, context: JobContext) -> Mapping[UnitId, UnitOutput]:
        """Train one expert for each unit."""
        from overproof.ml.augment import dsa
        from overproof.ml.augment.zca import Whitening
        from overproof.ml.devices import device_facts, pick_device
        from overproof.ml.models.base import build
        from overproof.ml.train.augmentation import Augmentation
        from overproof.ml.train.experts import ExpertTraining, write_trajectory
        from overproof.ml.train.loop import Training
        from overproof.ml.train.means import choose_means
        from overproof.ml.train.recipe import Recipe

        bodies = [ExpertsBody.model_validate(unit.body) for unit in job.units]
        body = bodies[0]
        device = pick_device(context.device)
        dataset = load_dataset(body.dataset, context)
        whitening = Whitening.fit(dataset.train_images, device) if body.zca else None
        networks = [
            build(body.network, dataset.facts, each.seed, "expert", whitening=whitening)
            for each in bodies
        ]
        means, reason = choose_means(
            networks[0].network,
            dataset.facts,
            device=device,
            images=len(dataset.train_images),
            epochs=body.epochs,
        )
        context.note(**device_facts(device), means=means.value, means_reason=reason)
        training = ExpertTraining(
            Training(
                networks,
                [each.seed for each in bodies],
                dataset.train_images,
                dataset.train_labels,
                Recipe(
                    epochs=body.epochs,
                    learning_rate=body.learning_rate,
                    momentum=body.momentum,
                    weight_decay=body.weight_decay,
                    batch_size=body.batch_size,
                    augmentation=Augmentation(
                        dsa.strategy_of(body.strategy, mirrors=dataset.mirrors)
                    ),
                ),
                means=means,
                device=device,
            )
        )
        seconds = run_to_end(training, context)

        outputs = {}
        for unit, trajectory, loss in zip(
            job.units, training.trajectories, training.losses, strict=True
        ):
            path = context.workdir / f"{unit.id}-trajectory.safetensors"
            write_trajectory(trajectory, path)
            result = {
                "epochs": body.epochs,
                "parameters": trajectory.shape[1],
                "loss": loss,
                "cost": {"seconds": seconds / len(job.units)},
            }
            outputs[UnitId(unit.id)] = UnitOutput(result=result, files={"trajectory": path})
        return outputs
