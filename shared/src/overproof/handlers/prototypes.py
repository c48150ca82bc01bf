"""Task `prototypes`: encodes the training images and clusters the latents of each class."""

from __future__ import annotations

from collections.abc import Mapping

from overproof.core.ids import UnitId
from overproof.core.spec import JobSpec, PrototypesBody
from overproof.handlers.inputs import load_dataset, rows_at_once
from overproof.handlers.resume import run_to_end
from overproof.runtime.handler import JobContext, JobHandler, UnitOutput

_ROWS_OF_IMAGE = 64  # of a small network, that take about as much memory as encoding an image


class PrototypesHandler(JobHandler):
    """Units that differ only in their images per class; the images are encoded once for all.

    File `prototypes`: safetensors with `latents` (K, n, *shape) float32 and `medoids` (K, n) int64.
    Result: `classes`, `dimensions` (of a latent); `cost.seconds`, an equal share of the job's.
    """

    def run(self, job: JobSpec, context: JobContext) -> Mapping[UnitId, UnitOutput]:
        """Find the prototypes of all units."""
        from overproof.ml.devices import device_facts, pick_device
        from overproof.ml.diffusion.latents import AutoencoderSpace, PixelSpace
        from overproof.ml.diffusion.weights import load_autoencoder
        from overproof.ml.distill.prototypes import PrototypeSearch
        from overproof.ml.distill.real_images import RealImages

        bodies = [PrototypesBody.model_validate(unit.body) for unit in job.units]
        body = bodies[0]
        device = pick_device(context.device)
        context.note(**device_facts(device))
        dataset = load_dataset(body.dataset, context)
        rows = 2 * rows_at_once(context)
        if body.weights is None:
            search_space: PixelSpace | AutoencoderSpace = PixelSpace()
        else:
            rows = max(1, rows // _ROWS_OF_IMAGE)
            autoencoder = load_autoencoder(body.weights, body.revision, device)
            search_space = AutoencoderSpace(autoencoder, body.resolution)
        search = PrototypeSearch(
            search_space,
            RealImages(dataset, device),
            (dataset.facts.channels, dataset.facts.size),
            [each.images_per_class for each in bodies],
            expand=body.expand,
            seed=body.seed,
            device=device,
            rows_at_once=rows,
        )
        seconds = run_to_end(search, context)

        outputs = {}
        for unit, each in zip(job.units, bodies, strict=True):
            made = search.prototypes(each.images_per_class)
            path = context.workdir / f"{unit.id}-prototypes.safetensors"
            made.write(path)
            result = {
                "classes": len(made.latents),
                "dimensions": made.latents[0, 0].numel(),
                "cost": {"seconds": seconds / len(job.units)},
            }
            outputs[UnitId(unit.id)] = UnitOutput(result=result, files={"prototypes": path})
        return outputs
