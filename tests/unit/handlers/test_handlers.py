"""The three handlers on real digits: files, results, resuming, sharing."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from overproof.catalog.attacks import ATTACKS
from overproof.catalog.distillation import DISTILLATION
from overproof.catalog.models import MODELS
from overproof.catalog.protocols import PROTOCOLS
from overproof.core.ids import UnitId
from overproof.core.spec import (
    CellBody,
    DatasetSpec,
    DistilledSetBody,
    JobSpec,
    NetworkBody,
    PluginRef,
    Unit,
)
from overproof.core.threat import Norm, ThreatModel
from overproof.errors import InvalidSpec, NonFiniteLoss, ShuttingDown
from overproof.experiments.units import make_unit
from overproof.handlers.attack import WhiteBoxHandler
from overproof.handlers.distill import SynthesisHandler
from overproof.handlers.train import NetworksHandler
from overproof.ml.datasets.base import load
from overproof.ml.distill.base import DistilledSet
from overproof.ml.train.means import Means
from overproof.runtime.handler import JobContext, JobHandler, UnitOutput

Contexts = Callable[..., Any]

DIGITS = DatasetSpec(name="digits", subset_per_class=20, test_subset_per_class=5)
CONVNET = MODELS.canonical(PluginRef(name="convnet", params={"width": 4, "depth": 2}))


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def a_set(method: str = "dm", seed: int = 0, **params: Any) -> Unit:
    if method == "dm":
        params = {"iterations": 4, "real_batch": 8} | params
    ref = DISTILLATION.canonical(PluginRef(name=method, params=params))
    body = DistilledSetBody(
        dataset=DIGITS, method=ref, network=CONVNET, images_per_class=2, seed=seed
    )
    return make_unit("synthesis", body, plugins=[(DISTILLATION, ref)])


def a_network(training_set: Unit | DatasetSpec, seed: int = 0, **params: Any) -> Unit:
    protocol = PluginRef(name="dsa", params={"epochs": 3, "learning_rate": 0.05} | params)
    needs = [UnitId(training_set.id)] if isinstance(training_set, Unit) else []
    body = NetworkBody(
        training_set=training_set.id if isinstance(training_set, Unit) else training_set,
        test_set=DIGITS,
        network=CONVNET,
        protocol=PROTOCOLS.canonical(protocol),
        seed=seed,
    )
    return make_unit("networks", body, needs=needs)


def a_cell(victim: Unit, attack: str, epsilon: str, norm: Norm = Norm.LINF, **params: Any) -> Unit:
    body = CellBody(
        victim=victim.id,
        attack=ATTACKS.canonical(PluginRef(name=attack, params=params)),
        threat=ThreatModel(norm=norm, epsilon=epsilon),
        test_set=DIGITS,
        seed=0,
    )
    return make_unit("white-box", body, needs=[UnitId(victim.id)])


def run(handler: JobHandler, context: JobContext, *units: Unit) -> Mapping[UnitId, UnitOutput]:
    outputs = handler.run(JobSpec.of(units), context)
    assert set(outputs) == {unit.id for unit in units}
    return outputs


def numbers_of(output: UnitOutput) -> dict[str, Any]:
    """The result without what may differ between equal runs."""
    assert output.result["cost"]["seconds"] >= 0
    return {name: value for name, value in output.result.items() if name != "cost"}


def bytes_of(output: UnitOutput) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in output.files.items()}


@pytest.fixture
def distilled(a_context: Contexts) -> tuple[Unit, Mapping[UnitId, UnitOutput]]:
    unit = a_set()
    return unit, run(SynthesisHandler(), a_context("set"), unit)


@pytest.fixture
def trained(
    distilled: tuple[Unit, Mapping[UnitId, UnitOutput]], a_context: Contexts
) -> tuple[Unit, Mapping[UnitId, UnitOutput]]:
    unit = a_network(distilled[0])
    return unit, run(NetworksHandler(), a_context("network", distilled[1]), unit)


def test_distilled_set_becomes_a_file_of_images_and_labels(a_context: Contexts) -> None:
    unit = a_set()
    context = a_context()

    output = run(SynthesisHandler(), context, unit)[UnitId(unit.id)]

    tensors = load_file(output.files["images"])
    assert tensors["images"].shape == (20, 1, 8, 8)
    assert tensors["labels"].tolist() == [label for label in range(10) for _ in range(2)]
    assert numbers_of(output) == {
        "images": 20,
        "training_images": 20,
        "steps": 4,
        "loss": context.scalars["loss"],
    }
    assert context.steps == [(step, 4) for step in (1, 2, 3, 4)]
    assert context.facts["device"] == "cpu"


def test_selection_has_neither_steps_nor_loss(a_context: Contexts) -> None:
    unit = a_set("random")

    output = run(SynthesisHandler(), a_context(), unit)[UnitId(unit.id)]

    assert numbers_of(output) == {
        "images": 20,
        "training_images": 20,
        "steps": 0,
        "loss": None,
    }


def test_networks_see_the_images_on_canvases(a_context: Contexts, tmp_path: Path) -> None:
    unit = a_set("idc", iterations=1, outer_loop=1, real_batch=4)
    made = run(SynthesisHandler(), a_context("set"), unit)
    output = made[UnitId(unit.id)]
    canvases = DistilledSet.read(output.files["images"], load(DIGITS, None).facts)
    canvases.decoded().write(tmp_path / "decoded")
    decoded = {UnitId(unit.id): replace(output, files={"images": tmp_path / "decoded"})}

    network = a_network(unit)
    as_canvases = run(NetworksHandler(), a_context("canvases", made), network)
    as_images = run(NetworksHandler(), a_context("images", decoded), network)

    assert (output.result["images"], output.result["training_images"]) == (20, 80)
    assert bytes_of(as_canvases[UnitId(network.id)]) == bytes_of(as_images[UnitId(network.id)])


def test_networks_are_trained_on_the_set_and_measured_on_the_test_set(
    distilled: tuple[Unit, Mapping[UnitId, UnitOutput]], a_context: Contexts
) -> None:
    units = [a_network(distilled[0], seed) for seed in (0, 1)]
    context = a_context("networks", distilled[1])

    outputs = run(NetworksHandler(), context, *units)

    for unit in units:
        output = outputs[UnitId(unit.id)]
        measured = load_file(output.files["predictions"])
        correct = int((measured["label"] == measured["prediction"]).sum())
        assert output.result["total"] == len(measured["label"]) == 50
        assert output.result["clean_correct"] == correct
        assert output.result["clean_accuracy"] == correct / 50
        assert 0 <= output.result["train_accuracy"] <= 1
        assert output.result["network"] == CONVNET.model_dump(mode="json")
    assert context.facts["means"] == "eager"
    assert context.steps[-1] == (4, 4)


def test_network_is_the_same_bytes_whichever_seeds_are_in_the_job(
    distilled: tuple[Unit, Mapping[UnitId, UnitOutput]], a_context: Contexts
) -> None:
    units = [a_network(distilled[0], seed) for seed in (0, 1)]
    together = run(NetworksHandler(), a_context("both", distilled[1]), *units)

    alone = run(NetworksHandler(), a_context("alone", distilled[1]), units[1])

    unit_id = UnitId(units[1].id)
    assert bytes_of(together[unit_id]) == bytes_of(alone[unit_id])
    assert numbers_of(together[unit_id]) == numbers_of(alone[unit_id])


def test_network_can_be_trained_on_a_whole_data_set(a_context: Contexts) -> None:
    unit = a_network(DIGITS, epochs=12)

    output = run(NetworksHandler(), a_context(), unit)[UnitId(unit.id)]

    assert output.result["clean_accuracy"] > 0.3
    assert output.result["train_accuracy"] > 0.3


def test_diverged_network_fails_the_job_for_good(a_context: Contexts) -> None:
    unit = a_network(DIGITS, learning_rate=1e30)

    with pytest.raises(NonFiniteLoss, match="lower the learning rate"):
        run(NetworksHandler(), a_context(), unit)


def test_cells_store_what_happened_to_every_test_image(
    trained: tuple[Unit, Mapping[UnitId, UnitOutput]], a_context: Contexts
) -> None:
    victim, inputs = trained
    units = [a_cell(victim, "fgsm", "16/255"), a_cell(victim, "pgd", "16/255")]

    outputs = run(WhiteBoxHandler(), a_context("attack", inputs), *units)

    predictions = load_file(inputs[UnitId(victim.id)].files["predictions"])
    for unit in units:
        output = outputs[UnitId(unit.id)]
        stored = load_file(output.files["outcomes"])
        label, last = stored["label"], stored["adversarial_prediction"]
        assert torch.equal(label, predictions["label"])
        assert torch.equal(stored["clean_prediction"], predictions["prediction"])
        assert float(stored["distance"].max()) <= 16 / 255 + 1e-6
        result = numbers_of(output)
        assert result["clean_correct"] == inputs[UnitId(victim.id)].result["clean_correct"]
        assert result["robust_s1"] == int((last == label).sum())
        assert result["robust_s2"] == int(stored["worst"].sum())
        assert result["robust_s2"] <= result["robust_s3"] <= result["robust_s1"]
        bits = np.unpackbits(np.frombuffer(b64decode(result["survivors"]), dtype=np.uint8))
        assert bits[: len(label)].tolist() == stored["worst"].int().tolist()
        assert not bits[len(label) :].any()
        assert result["invalid"] is None
    fgsm, pgd = (outputs[UnitId(unit.id)].result for unit in units)
    assert (fgsm["forward_passes"], fgsm["backward_passes"]) == (50, 0)
    assert (pgd["forward_passes"], pgd["backward_passes"]) == (550, 500)
    assert fgsm["cost"]["seconds"] < pgd["cost"]["seconds"]


def test_cell_is_the_same_bytes_whichever_cells_are_in_the_job(
    trained: tuple[Unit, Mapping[UnitId, UnitOutput]], a_context: Contexts
) -> None:
    victim, inputs = trained
    units = [a_cell(victim, name, "8/255") for name in ("fgsm", "bim", "pgd")]
    together = run(WhiteBoxHandler(), a_context("all", inputs), *units)

    for unit in units:
        alone = run(WhiteBoxHandler(), a_context(unit.id, inputs), unit)[UnitId(unit.id)]

        assert bytes_of(together[UnitId(unit.id)]) == bytes_of(alone)
        assert numbers_of(together[UnitId(unit.id)]) == numbers_of(alone)


def test_threat_model_of_another_norm_is_refused(
    trained: tuple[Unit, Mapping[UnitId, UnitOutput]], a_context: Contexts
) -> None:
    unit = a_cell(trained[0], "fgsm", "0.5", norm=Norm.L2)

    with pytest.raises(InvalidSpec, match="bounded by linf, not l2"):
        run(WhiteBoxHandler(), a_context("attack", trained[1]), unit)


def test_cell_stops_in_the_midst_of_its_queries_and_resumes_from_the_step_before(
    trained: tuple[Unit, Mapping[UnitId, UnitOutput]], a_context: Contexts
) -> None:
    victim, inputs = trained
    unit = a_cell(victim, "square", "8/255", queries=40)
    straight = run(WhiteBoxHandler(), a_context("straight", inputs), unit)
    stopped = a_context("stopped", inputs, checkpoint_every=1)
    reports = []

    def progress(step: int, total: int, **_: float) -> None:
        reports.append((step, total))
        if len(reports) == 12:
            raise ShuttingDown("the worker ends")

    stopped.progress = progress
    with pytest.raises(ShuttingDown):
        run(WhiteBoxHandler(), stopped, unit)
    resumed = run(WhiteBoxHandler(), a_context("stopped", inputs), unit)

    step, total = reports[-1]
    assert (step, reports[-2]) == (total - 1, reports[-1])  # within the last step
    assert numbers_of(resumed[UnitId(unit.id)]) == numbers_of(straight[UnitId(unit.id)])
    assert bytes_of(resumed[UnitId(unit.id)]) == bytes_of(straight[UnitId(unit.id)])


@pytest.mark.parametrize("task", ["distill", "train", "attack"])
def test_job_that_was_stopped_and_resumed_equals_the_straight_run(
    task: str, trained: tuple[Unit, Mapping[UnitId, UnitOutput]], a_context: Contexts
) -> None:
    victim, inputs = trained
    handler: JobHandler
    match task:
        case "distill":
            handler, units = SynthesisHandler(), [a_set(seed=5)]
        case "train":
            handler, units = NetworksHandler(), [a_network(DIGITS, seed) for seed in (0, 1)]
        case _:
            handler = WhiteBoxHandler()
            units = [a_cell(victim, name, "8/255") for name in ("fgsm", "bim", "pgd")]
    straight = run(handler, a_context("straight", inputs), *units)

    with pytest.raises(ShuttingDown):
        run(handler, a_context("stopped", inputs, stop_after=2, checkpoint_every=1), *units)
    resumed_context = a_context("stopped", inputs)
    resumed = run(handler, resumed_context, *units)

    assert resumed_context.steps[0][0] >= 2  # a pulse within the third step tells of the second
    for unit in units:
        unit_id = UnitId(unit.id)
        assert bytes_of(resumed[unit_id]) == bytes_of(straight[unit_id])
        assert numbers_of(resumed[unit_id]) == numbers_of(straight[unit_id])


def test_process_that_dies_after_the_last_step_still_ends_with_a_loss(
    a_context: Contexts,
) -> None:
    unit = a_network(DIGITS)
    with pytest.raises(ShuttingDown):
        run(NetworksHandler(), a_context("job", stop_after=4, checkpoint_every=1), unit)

    output = run(NetworksHandler(), a_context("job"), unit)[UnitId(unit.id)]

    assert output.result["loss"] > 0


def test_halved_batches_change_no_outcome(
    trained: tuple[Unit, Mapping[UnitId, UnitOutput]], a_context: Contexts
) -> None:
    unit = a_cell(trained[0], "pgd", "8/255")
    whole = run(WhiteBoxHandler(), a_context("whole", trained[1]), unit)

    halved = run(WhiteBoxHandler(), a_context("halved", trained[1], batch_scale=0.05), unit)

    assert numbers_of(whole[UnitId(unit.id)]) == numbers_of(halved[UnitId(unit.id)])


@pytest.mark.parametrize(("before", "after"), [(0.05, 1.0), (1.0, 0.05)])
def test_checkpoint_of_other_batches_is_not_gone_on_with(
    before: float,
    after: float,
    trained: tuple[Unit, Mapping[UnitId, UnitOutput]],
    a_context: Contexts,
) -> None:
    units = [a_cell(trained[0], "pgd", "8/255"), a_cell(trained[0], "square", "1/255", queries=20)]
    straight = run(WhiteBoxHandler(), a_context("straight", trained[1], batch_scale=after), *units)
    stopped = a_context("stopped", trained[1], stop_after=1, checkpoint_every=1, batch_scale=before)

    with pytest.raises(ShuttingDown):
        run(WhiteBoxHandler(), stopped, *units)
    resumed = run(WhiteBoxHandler(), a_context("stopped", trained[1], batch_scale=after), *units)

    for unit in units:
        unit_id = UnitId(unit.id)
        assert numbers_of(resumed[unit_id]) == numbers_of(straight[unit_id])
        assert bytes_of(resumed[unit_id]) == bytes_of(straight[unit_id])


def test_network_that_is_never_right_leaves_a_cascade_nothing_to_do(
    trained: tuple[Unit, Mapping[UnitId, UnitOutput]],
    a_context: Contexts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    victim, inputs = trained
    data = load(DIGITS, None)
    straight = load_file(inputs[UnitId(victim.id)].files["predictions"])
    shifted_labels = (straight["prediction"] + 1) % data.classes
    monkeypatch.setattr(
        "overproof.handlers.attack.load_dataset",
        lambda *_: replace(data, test_labels=shifted_labels),
    )
    unit = a_cell(victim, "square", "8/255", queries=20)

    output = run(WhiteBoxHandler(), a_context("attack", inputs), unit)[UnitId(unit.id)]

    assert (output.result["clean_correct"], output.result["robust_s2"]) == (0, 0)
    assert output.result["invalid"] is None
    assert output.result["cost"]["seconds"] >= 0


@pytest.mark.parametrize("protocol", ["dsa", "ddk"])
@pytest.mark.parametrize("stop", [2, 7])
def test_training_that_moves_to_another_kind_of_device_starts_over(
    protocol: str, stop: int, a_context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    params: dict[str, Any] = {"epochs": 8}
    if protocol == "ddk":
        params = {"epochs": 3, "learning_rates": "0.01 0.05"}
    made = run(SynthesisHandler(), a_context("set"), a_set())
    [set_id] = made
    body = NetworkBody(
        training_set=set_id,
        test_set=DIGITS,
        network=CONVNET,
        protocol=PROTOCOLS.canonical(PluginRef(name=protocol, params=params)),
        seed=0,
    )
    unit = make_unit("networks", body, needs=[set_id])
    straight = run(NetworksHandler(), a_context("straight", made), unit)
    stopped = a_context("stopped", made, stop_after=stop, checkpoint_every=1)
    with monkeypatch.context() as patched:
        patched.setattr(
            "overproof.ml.train.assembly.choose_means", lambda *_, **__: (Means.STACKED, "a GPU")
        )
        with pytest.raises(ShuttingDown):
            run(NetworksHandler(), stopped, unit)

    resumed = run(NetworksHandler(), a_context("stopped", made), unit)

    unit_id = UnitId(unit.id)
    assert numbers_of(resumed[unit_id]) == numbers_of(straight[unit_id])
    assert bytes_of(resumed[unit_id]) == bytes_of(straight[unit_id])
