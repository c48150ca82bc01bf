"""Task `synthesis`: distils one set by a method of the catalog."""

from __future__ import annotations

from collections.abc import Mapping

from overproof.catalog.distillation import DISTILLATION
from overproof.core.clock import SystemClock
from overproof.core.ids import UnitId
from overproof.core.spec import DistilledSetBody, JobSpec
from overproof.handlers.inputs import load_dataset, load_teacher, rows_at_once
from overproof.handlers.resume import run_to_end
from overproof.handlers.showing import Showing
from overproof.runtime.handler import JobContext, JobHandler, UnitOutput


class SynthesisHandler(JobHandler):
    """One unit, one distilled set.

    File `images`: safetensors with `images` (K · n, C, H, W) float32 pixels and `labels` int64;
    of some methods `logits` (K · n, K) float32 and `learning_rate`.
    Of others `canvas_factor` m, when each image is a canvas of m × m images.
    Result: `images` (that are stored), `training_images` (that networks see), `steps`, `loss` (of
    the last step, null without one); `cost.seconds`. What it shows: see `showing`.
    """

    def run(self, job: JobSpec, context: JobContext) -> Mapping[UnitId, UnitOutput]:
        """Distil the set of the job's only unit."""
        from overproof.ml.devices import device_facts, free_bytes, pick_device
        from overproof.ml.distill.base import Problem

        (unit,) = job.units
        body = DistilledSetBody.model_validate(unit.body)
        device = pick_device(context.device)
        dataset = load_dataset(body.dataset, context)
        context.note(**device_facts(device))
        prototypes = None
        if body.prototypes is not None:
            prototypes = context.input(UnitId(body.prototypes), "prototypes")
        teacher = None
        if body.teacher is not None:
            teacher = load_teacher(UnitId(body.teacher), dataset.facts, context).to(device)
        method = DISTILLATION.load(body.method.name)(
            DISTILLATION.resolve(body.method),
            Problem(
                dataset=dataset,
                network=body.network,
                images_per_class=body.images_per_class,
                seed=body.seed,
                device=device,
                experts=[context.input(UnitId(each), "trajectory") for each in body.experts],
                teacher=teacher,
                prototypes=prototypes,
                rows_at_once=2 * rows_at_once(context),
            ),
        )
        demand = method.demand()
        if demand is not None:
            context.note(estimated_bytes=demand.total)
            demand.require(free_bytes(device), what=body.method.name, where=str(device))
        clock = SystemClock()
        showing = Showing(method, body, dataset, context, clock=clock)
        seconds = run_to_end(method, context, clock=clock, showing=showing)
        context.note(**method.notes())
        distilled = method.result()
        showing.result(distilled.images)
        path = context.workdir / "images.safetensors"
        distilled.write(path)
        result = {
            "images": len(distilled.images),
            "training_images": len(distilled.images) * distilled.canvas_factor**2,
            "steps": method.total_steps,
            "loss": method.loss,
            "cost": {"seconds": seconds},
        }
        return {UnitId(unit.id): UnitOutput(result=result, files={"images": path})}
