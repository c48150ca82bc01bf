"""Task `white-box`: attacks one network in several cells."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overproof.catalog.attacks import ATTACKS, attack
from overproof.core.ids import UnitId
from overproof.core.spec import CellBody, JobSpec, PluginRef
from overproof.errors import InvalidSpec
from overproof.handlers.inputs import load_dataset, rows_at_once
from overproof.handlers.resume import run_to_end
from overproof.runtime.handler import JobContext, JobHandler, UnitOutput

if TYPE_CHECKING:
    from overproof.ml.attack.cells import Cell, CellOutcome


class WhiteBoxHandler(JobHandler):
    """Units that share victim and test set, attacked together.

    File `outcomes`: safetensors with, for every test image in order, `label`,
    `clean_prediction`, `adversarial_prediction` (int64), `worst` (bool), `distance` and `nearest`
    (float32; of the nearest misclassified point visited, infinite for none).
    Result: `total`, `clean_correct`, `robust_s1`, `robust_s2`, `robust_s3`, `flat_gradients`
    (counts), `shorter_runs` (the three readings by a smaller number of steps), `broken_by` (counts
    by part of a cascade), `notes` (what the attack did differently), `classes`,
    `survivors` (base64 of a bit for each image in order, set where it is robust by S2),
    `probabilities` (whether the outputs look like some), `forward_passes`,
    `backward_passes` (rows, without the shared clean pass), `invalid` (null, or why the counts mean
    nothing); `cost.seconds`, the cell's share of the job by passes.
    """

    def run(self, job: JobSpec, context: JobContext) -> Mapping[UnitId, UnitOutput]:
        """Attack the victim once for each unit."""
        from overproof.ml.attack.engine import CellEngine
        from overproof.ml.attack.memory import rows_that_fit
        from overproof.ml.devices import device_facts, pick_device
        from overproof.ml.kernels.network import fast_network
        from overproof.ml.models.stored import load_network
        from overproof.ml.train.means import multiplications

        bodies = [CellBody.model_validate(unit.body) for unit in job.units]
        body = bodies[0]
        device = pick_device(context.device)
        test_set = load_dataset(body.test_set, context)
        victim_id = UnitId(body.victim)
        network = PluginRef.model_validate(context.input_result(victim_id)["network"])
        victim = load_network(network, test_set.facts, context.input(victim_id, "weights"))
        victim = victim.to(device).eval().requires_grad_(False)
        one_pass = multiplications(victim.network, test_set.facts) * len(test_set.test_images)
        fast, means = fast_network(victim, one_pass, device=device)
        context.note(**device_facts(device), means=means)
        rows = rows_at_once(context, pixels=test_set.test_images[0, 0].numel())
        fitting = int(rows_that_fit(victim.network, test_set.facts, device) * context.batch_scale)
        engine = CellEngine(
            fast,
            test_set.test_images,
            test_set.test_labels,
            [_cell(each) for each in bodies],
            device=device,
            rows_at_once=max(1, min(fitting, rows)),
        )
        seconds = run_to_end(engine, context)
        outcomes = engine.outcomes()
        work = [outcome.forward_passes + 2 * outcome.backward_passes for outcome in outcomes]
        if not any(work):  # nothing was right, so that there was nothing to attack
            work = [1] * len(work)
        outputs = {}
        for unit, outcome, passes in zip(job.units, outcomes, work, strict=True):
            path = context.workdir / f"{unit.id}-outcomes.safetensors"
            outputs[UnitId(unit.id)] = _output(outcome, path, seconds * passes / sum(work))
        return outputs


def _cell(body: CellBody) -> Cell:
    """The attack of `body` with its budget.

    Raises:
        InvalidSpec: the attack is bounded by another norm than the threat model's.
    """
    from overproof.ml.attack.cells import Cell

    norm = attack(body.attack.name).norm
    if norm is not body.threat.norm:
        raise InvalidSpec(
            [f"threat.norm: {body.attack.name} is bounded by {norm}, not {body.threat.norm}"],
            source="cell",
        )
    made = ATTACKS.load(body.attack.name)(ATTACKS.resolve(body.attack), seed=body.seed)
    return Cell(attack=made, radius=body.threat.radius)


def _output(outcome: CellOutcome, path: Path, seconds: float) -> UnitOutput:
    import numpy as np
    from safetensors.torch import save_file

    tensors = {
        "label": outcome.label,
        "clean_prediction": outcome.clean_prediction,
        "adversarial_prediction": outcome.adversarial_prediction,
        "worst": outcome.worst,
        "distance": outcome.distance,
        "nearest": outcome.nearest,
    }
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    result: dict[str, Any] = {
        **outcome.counts(),
        "shorter_runs": outcome.shorter_runs(),
        "broken_by": outcome.broken_by_part(),
        "notes": list(outcome.notes),
        "classes": outcome.classes,
        "probabilities": outcome.probabilities,
        "forward_passes": outcome.forward_passes,
        "backward_passes": outcome.backward_passes,
        "survivors": b64encode(np.packbits(outcome.worst.numpy()).tobytes()).decode(),
        "invalid": outcome.fault(),
        "cost": {"seconds": seconds},
    }
    return UnitOutput(result=result, files={"outcomes": path})
