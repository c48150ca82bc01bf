"""Task `soft-labels`: lets a teacher label views of a set."""

from __future__ import annotations

from collections.abc import Mapping

from overproof.core.ids import UnitId
from overproof.core.spec import JobSpec, SoftLabelsBody
from overproof.handlers.inputs import load_dataset, load_teacher, rows_at_once
from overproof.handlers.resume import run_to_end
from overproof.runtime.handler import JobContext, JobHandler, UnitOutput


class SoftLabelsHandler(JobHandler):
    """One unit, the labels of one set.

    File `labels`: safetensors with, for each epoch and image, the view (`boxes`, `mirrored`,
    `tiles`), what it is mixed with (`partners`, `mix_boxes`, `shares`) and `logits` float16; and
    the `order` of each epoch.
    Result: `images`, `epochs`, `steps`; `cost.seconds`. Checkpoints hold the labels so far.
    """

    def run(self, job: JobSpec, context: JobContext) -> Mapping[UnitId, UnitOutput]:
        """Label the set of the job's only unit."""
        from overproof.ml.devices import device_facts, pick_device
        from overproof.ml.distill.base import DistilledSet
        from overproof.ml.train.soft_labels import LabelMaking, ViewPlan

        (unit,) = job.units
        body = SoftLabelsBody.model_validate(unit.body)
        device = pick_device(context.device)
        context.note(**device_facts(device))
        dataset = load_dataset(body.dataset, context)
        images = dataset.train_images
        if body.training_set is not None:
            path = context.input(UnitId(body.training_set), "images")
            images = DistilledSet.read(path, dataset.facts).decoded().images
        making = LabelMaking(
            load_teacher(UnitId(body.teacher), dataset.facts, context).to(device),
            images,
            ViewPlan(
                epochs=body.epochs,
                batch_size=body.batch_size,
                smallest_crop=body.smallest_crop,
                shift=body.shift,
                mirrors=body.mirrors and dataset.mirrors,
                mixing=body.mixing,
                tiles=body.tiles,
                seed=body.seed,
            ),
            teacher_mode=body.teacher_mode,
            device=device,
            rows_at_once=rows_at_once(context, pixels=images[0, 0].numel()),
        )
        seconds = run_to_end(making, context)
        path = context.workdir / "labels.safetensors"
        making.write(path)
        result = {
            "images": len(images),
            "epochs": body.epochs,
            "steps": making.total_steps,
            "cost": {"seconds": seconds},
        }
        return {UnitId(unit.id): UnitOutput(result=result, files={"labels": path})}
