import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from overproof.artifacts import keys
from overproof.bus.topics import Topic
from overproof.cli.app import app
from overproof.cli.doctor import check_clock, check_compiler, check_file_system, check_folder
from overproof.core.states import JobKind, JobState
from overproof.runtime.settings import Settings
from overproof.runtime.wiring import Backends
from tests.workers import work_off

SPEC = """
name: tiny
datasets: digits
methods: [random]
images_per_class: [1]
networks: [{name: convnet, params: {width: 8, depth: 2}}]
protocol: {name: dc, params: {epochs: 3}}
attacks: [{name: pgd, params: {steps: 20}, epsilons: [8/255]}]
seeds: [0, 1]
"""

NOBODY_LISTENS = "postgresql+psycopg2://user:secret@127.0.0.1:1/results"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("OVERPROOF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def backends(home):
    with Backends.from_settings(Settings.from_env()) as opened:
        yield opened


def call(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def read_json(*arguments):
    return json.loads(call(*arguments, "--json").stdout)


@pytest.fixture
def submitted(home, spec):
    return read_json("submit", spec)["experiment_id"]


# ---- exit codes and start-up, in a process of its own ----------------------------------------


def run_process(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "overproof", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "absent.yaml"], "absent.yaml has 1 fault"),
        (["status", "exp-0"], "no experiment exp-0"),
        (["status", "job-0"], "no job job-0"),
        (["status", "nonsense"], "is no id"),
        (["plugins", "show", "attacks", "pdg"], "did you mean pgd"),
        (["dead-letters", "drop", "7"], "no dead letter 7"),
        (["pause", "nonsense"], "Invalid value"),
        (["leaderboard", "exp-0"], "no experiment exp-0"),
    ],
)
def test_wrong_use_ends_with_2_and_says_why_without_a_traceback(home, arguments, says):
    result = call(*arguments, code=2)

    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_process_exits_with_the_code_and_one_line(tmp_path):
    process = run_process("status", "exp-0", OVERPROOF_HOME=str(tmp_path))

    assert process.returncode == 2
    assert process.stderr.splitlines() == [
        "overproof: no experiment exp-0; list them with `overproof status`"
    ]


def test_unusable_settings_are_wrong_use(monkeypatch, home):
    monkeypatch.setenv("OVERPROOF_LEASE_TTL_S", "soon")

    assert "OVERPROOF_LEASE_TTL_S" in call("status", code=2).stderr


def test_database_that_does_not_answer_ends_with_1(monkeypatch, home):
    monkeypatch.setenv("OVERPROOF_DATABASE_URL", NOBODY_LISTENS)

    assert "overproof: database" in call("status", code=1).stderr


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from overproof.cli.app import app\n"
        "app(['--help'], standalone_mode=False)\n"
        "print([m for m in ('torch', 'sqlalchemy', 'pydantic', 'plotly', 'numpy', 'rich.table')"
        " if m in sys.modules], file=sys.stderr)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert process.stderr.strip() == "[]"
    assert "leaderboard" in process.stdout


# ---- plan and submit -------------------------------------------------------------------------


def test_plan_counts_what_is_new_and_changes_nothing(home, spec, backends):
    planned = read_json("plan", spec)

    assert [unit["state"] for unit in planned["units"]] == ["new"] * 6
    assert len(planned["jobs"]) == 6
    assert backends.repository.experiments() == []


def test_plan_after_the_work_has_nothing_new(submitted, spec, backends):
    work_off(backends.repository)

    planned = read_json("plan", spec)

    assert {unit["state"] for unit in planned["units"]} == {"done"}
    assert planned["jobs"] == []


def test_faults_of_a_spec_are_all_told(home, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(SPEC.replace("random", "randon").replace("digits", "digitz"))

    stderr = call("submit", path, code=2).stderr

    assert "did you mean random" in stderr
    assert "digitz" in stderr


def test_submit_warns_when_no_worker_was_seen(home, spec, backends):
    backends.repository.heartbeat("somebody", "distill", None)

    result = call("submit", spec)

    assert "no distill worker" not in result.stderr
    assert "no train worker" in result.stderr
    assert "6 new jobs" in result.stdout


def test_submitting_twice_shares_all_jobs(submitted, spec):
    again = read_json("submit", spec)

    assert (again["created"], again["linked"]) == (0, 6)
    assert again["experiment_id"] != submitted


# ---- looking and steering --------------------------------------------------------------------


def test_status_without_id_shows_experiments_and_kinds(submitted):
    shown = read_json("status")

    assert [each["experiment_id"] for each in shown["experiments"]] == [submitted]
    assert {each["kind"]: each["ready"] for each in shown["kinds"]} == {
        "distill": 2,
        "train": 0,
        "attack": 0,
    }
    assert "under way" in call("status").stdout


def test_status_of_an_experiment_lists_its_jobs(submitted):
    shown = read_json("status", submitted)

    assert len(shown["jobs"]) == 6
    assert {job["state"] for job in shown["jobs"]} == {"READY", "WAITING"}
    assert call("status", submitted).stdout.count("WAITING") == 4


def test_status_of_a_failed_job_shows_why(submitted, backends):
    work_off(backends.repository, failing={JobKind.DISTILL})
    [job, _] = backends.repository.jobs(state=JobState.FAILED)

    text = call("status", job.job_id).stdout

    assert "NonFiniteLoss: the loss is nan" in text
    assert "blocked by" in call("status", submitted).stdout


def test_status_finds_a_job_by_the_id_of_a_unit(submitted, backends):
    unit = backends.repository.units(submitted)[0]

    assert read_json("status", unit.unit_id)["job"]["job_id"] == unit.job_id


def test_watch_ends_with_the_experiment(submitted, backends):
    work_off(backends.repository)

    assert "6 of 6 jobs ended: 6 succeeded" in call("watch").stdout


def test_watch_of_failed_work_ends_with_1(submitted, backends):
    work_off(backends.repository, failing={JobKind.TRAIN})

    result = call("watch", submitted, code=1)

    assert "2 jobs failed" in result.stderr
    assert "2 of them blocked" in result.stdout


def test_cancel_ends_the_jobs_of_an_experiment(submitted, backends):
    call("cancel", submitted)

    assert {job.state for job in backends.repository.jobs()} == {JobState.CANCELLED}


def test_cancel_of_one_job_leaves_the_others(submitted, backends):
    [job, _] = backends.repository.jobs(state=JobState.READY)

    call("cancel", job.job_id)

    assert backends.repository.job(job.job_id).state is JobState.CANCELLED
    assert len(backends.repository.jobs(state=JobState.READY)) == 1


def test_retry_makes_failed_jobs_ready_again(submitted, backends):
    work_off(backends.repository, failing={JobKind.DISTILL})

    assert "2 jobs are ready again" in call("retry", submitted).stdout
    assert len(backends.repository.jobs(state=JobState.READY)) == 2


def test_pause_and_resume_steer_the_claims_of_a_kind(submitted, backends):
    call("pause", "distill")
    assert backends.repository.claim(JobKind.DISTILL, owner="me", ttl_s=60) is None

    call("resume", "distill")
    assert backends.repository.claim(JobKind.DISTILL, owner="me", ttl_s=60) is not None


# ---- numbers ---------------------------------------------------------------------------------


def test_leaderboard_shows_percent_with_intervals(submitted, backends):
    work_off(backends.repository)

    table = call("leaderboard").stdout
    [record] = read_json("leaderboard", submitted)

    # seeds 0 and 1: 80 and 81 right; half of the interval is t(0.975, 1) · s / √2 = 12.706 · 0.005
    assert record["clean"] == pytest.approx(0.805)
    assert record["clean_high"] - record["clean"] == pytest.approx(12.7062 * 0.005, abs=1e-5)
    assert record["robust"] == pytest.approx(0.195)
    assert "80.5 ± 6.4" in table
    assert "pgd-linf[steps=20]@8/255:S2" in table


def test_leaderboard_under_another_meaning_of_robust(submitted, backends):
    work_off(backends.repository)

    [record] = read_json("leaderboard", "--semantics", "S1")

    assert record["robust"] == pytest.approx(0.395)


def test_leaderboard_without_results_says_so(submitted):
    assert call("leaderboard").stdout == "no results yet\n"


def test_report_is_a_page_with_provenance(submitted, backends, tmp_path):
    work_off(backends.repository)

    call("report", submitted, "--output", tmp_path / "new" / "page.html")

    page = (tmp_path / "new" / "page.html").read_text()
    assert submitted in page
    assert "80.5 ± 6.4" in page
    assert "2.6.0" in page
    for unit in backends.repository.units(submitted):
        assert unit.unit_id in page


def test_report_to_an_impossible_place_is_wrong_use(submitted, tmp_path):
    (tmp_path / "file").write_text("")

    assert (
        "cannot be written"
        in call("report", "--output", tmp_path / "file" / "page.html", code=2).stderr
    )


def test_dashboard_that_is_not_there_is_wrong_use(home, tmp_path):
    assert "--app PATH" in call("dashboard", "--app", tmp_path / "app.py", code=2).stderr


# ---- plug-ins --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    ["distillation", "attacks", "models", "datasets", "metrics", "protocols", "tasks"],
)
def test_every_plugin_can_be_listed_and_shown(home, kind):
    listed = read_json("plugins", "list", kind)

    assert listed
    for info in listed:
        assert read_json("plugins", "show", kind, info["name"]) == info
        assert info["summary"] in call("plugins", "show", kind, info["name"]).stdout


def test_shown_parameters_have_bounds_and_defaults(home):
    params = {
        param["name"]: param for param in read_json("plugins", "show", "attacks", "pgd")["params"]
    }

    assert params["steps"] == {
        "name": "steps",
        "type": "integer, at least 1, at most 100000",
        "default": 10,
        "required": False,
    }


def test_list_takes_a_pattern(home):
    assert [i["name"] for i in read_json("plugins", "list", "attacks", "--pattern", "bim*")] == [
        "bim-linf"
    ]


# ---- dead letters ----------------------------------------------------------------------------


@pytest.fixture
def letter(backends, tmp_path):
    raw = tmp_path / "raw"
    raw.write_bytes(b"not an envelope")
    ref = backends.store.put(keys.asset("datasets", "0" * 64), raw, media_type="text/plain")
    backends.store.put(keys.dead_letter(ref.sha256), raw, media_type="text/plain")
    return backends.repository.add_dead_letter(
        topic=Topic.JOBS_TRAIN.value,
        reason="not JSON",
        report="",
        sha256=ref.sha256,
        size_bytes=ref.size_bytes,
    )


def test_dead_letters_are_listed_replayed_and_dropped(letter, backends):
    assert "not JSON" in call("dead-letters", "list").stdout

    call("dead-letters", "replay", letter)
    [shown] = read_json("dead-letters", "list")
    assert shown["replayed_at"] is not None

    call("dead-letters", "drop", letter)
    assert read_json("dead-letters", "list") == []


# ---- doctor ----------------------------------------------------------------------------------


def test_doctor_finds_embedded_back_ends_in_order(home):
    findings = {each["what"]: each for each in read_json("doctor")}

    for what in ("settings", "home", "bus", "artifacts", "database", "clock"):
        assert findings[what]["level"] == "ok", findings[what]


def test_doctor_ends_with_1_when_the_database_does_not_answer(monkeypatch, home):
    monkeypatch.setenv("OVERPROOF_DATABASE_URL", NOBODY_LISTENS)

    stdout = call("doctor", code=1).stdout

    assert "does not answer" in stdout
    assert "secret" not in stdout


@pytest.mark.parametrize(
    ("mounts", "level"),
    [
        ("/dev/sda / ext4 rw 0 0\n", "ok"),
        ("/dev/sda / ext4 rw 0 0\nserver:/x /data nfs4 rw 0 0\n", "fail"),
        ("server:/x / nfs rw 0 0\n/dev/sdb /data xfs rw 0 0\n", "ok"),
        ("", "warn"),
    ],
)
def test_home_on_a_network_file_system_fails(mounts, level):
    assert check_file_system(Path("/data/overproof"), mounts).level == level


def test_clock_that_differs_from_the_databases_is_told():
    assert check_clock(1000.0, 1001.0).level == "ok"
    assert check_clock(1000.0, 1100.0).level == "warn"


def test_missing_compiler_is_told(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)

    assert check_compiler(lambda name: None).level == "warn"
    assert check_compiler(lambda name: f"/usr/bin/{name}").found == "/usr/bin/c++"


def test_home_that_is_a_file_fails(tmp_path):
    (tmp_path / "file").write_text("")

    assert check_folder("home", tmp_path / "file").level == "fail"
    assert check_folder("home", tmp_path / "not" / "yet").level != "fail"


def test_migrate_prepares_a_database_for_the_services(home):
    assert "schema" in call("migrate").stdout
    assert "schema" in call("migrate").stdout
