"""Sweeps on disk: killed and resumed, damaged, extended, shared out, and what is refused. With a tiny model."""

from __future__ import annotations

import csv
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import Run
from support.sweeping import BALL, STAR, TINY_METRICS, cell_files, held, results, started, sweep, timeless, tiny_folder

from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.media import read_frames, read_recipe
from fastcar_cli.sweep.store import Store, lock_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


def _ask(model: Path) -> list[object]:
    return [BALL, STAR, "--seeds", "0-1", "--tau", "off,0.5,0,-0.5,-inf", "--gate", "row", "--metrics", TINY_METRICS,
            "--model", model, "--repeats", "1"]  # fmt: skip


@pytest.fixture
def ask(model: Path) -> list[object]:
    """Arguments of a sweep of 2 prompts x 2 seeds x 4 thresholds with their dense cells."""
    return _ask(model)


@pytest.fixture(scope="module")
def _undisturbed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep") / "whole"
    done = sweep(*_ask(model), "-o", folder)
    assert done.exit_code == 0, done.exception
    return folder


@pytest.fixture
def whole(_undisturbed: Path, tmp_path: Path) -> Path:
    """The folder of an undisturbed sweep, a copy to work on."""
    shutil.copytree(_undisturbed, tmp_path / "whole")
    return tmp_path / "whole"


def test_results_keep_the_contract(whole: Path) -> None:
    data = results(whole)
    assert data["plan"]["tau"] == [None, 0.5, 0.0, -0.5, "-inf"]
    assert data["plan"]["prompts"] == [BALL, STAR] and data["plan"]["seeds"] == [0, 1]
    assert data["model"]["grid"] == [2, 2] and data["model"]["frames"] == 4 and data["model"]["layers"] == 3
    assert data["config"]["sampling"]["cfg"] == 2.5 and data["metrics"] == ["psnr_db", "temporal"]
    assert len(data["cells"]) == 20 == len({c["id"] for c in data["cells"]})
    by_id = {c["id"]: c for c in data["cells"]}
    for cell in data["cells"][::6]:
        assert read_frames(whole / cell["video"]).shape[0] == 4
        assert read_recipe(whole / cell["video"])["prompt"] == cell["prompt"]
    for cell in data["cells"]:
        assert cell["speed"]["decode_s"]["runs"] and cell["speed"]["tokens_per_s"] > 0
        if cell["tau"] is None:
            assert cell["reference"] is None and cell["metrics"] is None and cell["speed"]["speedup"] == 1
            continue
        dense = by_id[cell["reference"]]
        assert [dense[k] for k in ("prompt", "seed", "window", "backend", "tau")] == [
            cell["prompt"], cell["seed"], cell["window"], cell["backend"], None
        ]  # fmt: skip
        assert set(cell["metrics"]) == {"psnr_db", "temporal"} and len(cell["frames"]["psnr_db"]) == 4
    ratios = [x["replay_ratio"] for x in data["summary"]]
    assert ratios == sorted(ratios) and ratios[0] == 0 and data["summary"][-1]["eligible_ratio"] == 1
    assert [x["videos"] for x in data["summary"]] == [4] * 5


def test_tables_have_a_row_a_cell(whole: Path) -> None:
    cells = results(whole)["cells"]
    with (whole / "results.csv").open(encoding="utf-8", newline="") as f:
        lines = list(csv.DictReader(f))
    pq = pytest.importorskip("pyarrow.parquet", reason="needs pip install 'fastcar[parquet]'")
    table = pq.read_table(whole / "results.parquet").to_pylist()
    assert [x["id"] for x in lines] == [x["id"] for x in table] == [c["id"] for c in cells]
    for line, row, cell in zip(lines, table, cells, strict=True):
        assert line["prompt"] == row["prompt"] == cell["prompt"]
        assert row["tau"] == (None if cell["tau"] is None else float(cell["tau"]))
        assert line["tau"] == ("" if cell["tau"] is None else str(float(cell["tau"])))
        assert row["ratio"] == cell["replay"]["ratio"] == float(line["ratio"])
        assert row["dense"] is (cell["tau"] is None)


@pytest.mark.slow
def test_killed_twice_and_resumed_equals_undisturbed(ask: list[object], whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    before: dict[str, tuple[int, int]] = {}
    # A dense cell has three files (video, TAS, figures), others two: both times the figures of a cell are missing.
    for at, cells in ((11, 4), (18, 11)):
        process = held("sweep", *ask, "-o", folder, at=at)
        process.kill()
        process.communicate()
        now = {k: v for k, v in cell_files(folder).items() if not k.startswith(".")}
        finished = {p.stem for p in (folder / "cells").glob("[!.]*.json")}
        assert len(finished) == cells
        assert all(now[k] == v for k, v in before.items()), "a finished cell was done again"
        before = {k: v for k, v in now.items() if Path(k).stem in finished}
    assert sweep(*ask, "-o", folder).exit_code == 0
    after = cell_files(folder)
    assert all(after[k] == v for k, v in before.items()), "a finished cell was done again"
    assert not [k for k in after if k.startswith(".")]
    assert timeless(folder) == timeless(whole)
    assert (folder / "results.csv").read_bytes().count(b"\n") == 21


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished(ask: list[object], whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    process = held("sweep", *ask, "-o", folder, at=9)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert out == "" and "stopped" in err and "Traceback" not in err
    assert sweep(*ask, "-o", folder).exit_code == 0
    assert timeless(folder) == timeless(whole)


def test_repeats_are_added_to_what_is_there(ask: list[object], whole: Path) -> None:
    before = timeless(whole)
    runs = {c["id"]: c["speed"]["decode_s"]["runs"] for c in results(whole)["cells"]}
    assert sweep(*ask, "--repeats", "3", "-o", whole).exit_code == 0
    before["plan"]["repeats"] = 3
    assert timeless(whole) == before
    for cell in results(whole)["cells"]:
        times = cell["speed"]["decode_s"]
        assert len(times["runs"]) == 3 and times["runs"][:1] == runs[cell["id"]]
        assert times["min"] == min(times["runs"]) <= times["median"] <= times["max"] == max(times["runs"])


def test_a_finished_sweep_does_nothing_again_and_an_extended_one_only_the_rest(
    ask: list[object], whole: Path, tmp_path: Path
) -> None:
    before = cell_files(whole)
    assert sweep(*ask, "-o", whole).exit_code == 0
    assert cell_files(whole) == before
    more = [*ask, "--seeds", "1-2", "--tau", "-0.5,-0.25"]
    assert sweep(*more, "-o", whole).exit_code == 0
    after = cell_files(whole)
    assert before.items() <= after.items()
    # Seed 2: dense and two thresholds; seed 1: the new threshold.
    assert len(results(whole)["cells"]) == 20 + 2 * 3 + 2
    apart = tmp_path / "apart"
    assert sweep(*more, "-o", apart).exit_code == 0
    assert {c["id"]: c["digest"] for c in results(apart)["cells"]}.items() <= {
        c["id"]: c["digest"] for c in results(whole)["cells"]
    }.items()


ODD = {
    "runs": [3], "replay": {"ratio": "x"}, "metrics": [], "files": {".mp4": 1}, "digest": None, "fpga": [1],
    "kernels": 3, "fidelity": {"all_right": "yes"}, "drafts": {"tokens_per_pass": None},
}  # fmt: skip


def test_cells_of_other_types_are_damaged(ask: list[object], whole: Path) -> None:
    names = [p for p in sorted((whole / "cells").glob("*.json"))][: len(ODD) + 2]
    for file, (key, value) in zip(names, ODD.items(), strict=False):
        file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    names[-2].write_text("[]")
    names[-1].write_text(names[-1].read_text().replace('"decode_s": ', '"decode_s": NaN, "was": '))
    store = Store(whole)
    store.read()
    assert [line.split(".json")[0].rpartition("/")[2] for line in store.damaged] == [p.stem for p in names]
    assert sweep(*ask, "-o", whole).exit_code == 0 and len(results(whole)["cells"]) == 20


@pytest.mark.parametrize("kind", [".json", ".mp4", ".npz", "gone"])
def test_a_damaged_cell_is_named_and_made_again(ask: list[object], whole: Path, kind: str) -> None:
    wanted, before = timeless(whole), cell_files(whole)
    dense = next(c for c in results(whole)["cells"] if c["tau"] is None)["id"]
    file = whole / "cells" / f"{dense}{'.mp4' if kind == 'gone' else kind}"
    if kind == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    done = sweep(*ask, "-o", whole)
    assert done.exit_code == 0 and "damaged" in done.output and dense in done.output.replace("\n", "")
    assert timeless(whole) == wanted
    assert {k for k, v in cell_files(whole).items() if before[k] != v} == {
        f"{dense}{s}" for s in (".json", ".mp4", ".npz")
    }


def test_another_configuration_is_refused_with_the_difference(ask: list[object], whole: Path, tmp_path: Path) -> None:
    before = cell_files(whole)
    for change, said in (
        (["--frames", "3"], "generation.frames is 4 in that sweep and 3 in this"),
        (["--set", "sampling.temperature=0.5"], "sampling.temperature"),
        (["--metrics", "psnr"], "metrics is 'psnr,temporal'"),
        (["--model", tiny_folder(tmp_path / "other", seed=1)], "contents of model weights differ"),
    ):
        done = sweep(*ask, *change, "-o", whole)
        assert isinstance(done.exception, RequestError) and said in str(done.exception), done.exception
    (whole / "sweep.json").write_text("{", encoding="utf-8")
    done = sweep(*ask, "-o", whole)
    assert isinstance(done.exception, RequestError) and "sweep.json is damaged" in str(done.exception)
    assert cell_files(whole) == before


def test_two_sweeps_in_one_folder_are_refused(ask: list[object], whole: Path) -> None:
    with lock_folder(whole):
        for shard in ([], ["--shard", "1/2"]):
            done = sweep(*ask, *shard, "-o", whole)
            assert isinstance(done.exception, RequestError) and f"process {os.getpid()}" in str(done.exception)
    with lock_folder(whole, (1, 2)):
        assert sweep(*ask, "--shard", "2/2", "-o", whole).exit_code == 0
        for shard in ([], ["--shard", "1/2"], ["--shard", "1/3"]):
            assert isinstance(sweep(*ask, *shard, "-o", whole).exception, RequestError)
    assert sweep(*ask, "-o", whole).exit_code == 0


def test_the_lock_of_a_dead_process_bars_nobody(ask: list[object], whole: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom fastcar_cli.sweep.store import lock_folder\n"
        "with lock_folder(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(whole)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    assert isinstance(sweep(*ask, "-o", whole).exception, RequestError)
    process.kill()
    process.communicate()
    assert sweep(*ask, "-o", whole).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False])
def test_shards_are_the_whole(ask: list[object], whole: Path, tmp_path: Path, together: bool) -> None:
    merged = tmp_path / "merged"
    for k in (1, 2, 3):
        folder = merged if together else tmp_path / f"part{k}"
        assert sweep(*ask, "--shard", f"{k}/3", "-o", folder).exit_code == 0
    if not together:
        for k in (1, 2, 3):
            subprocess.run(["cp", "-r", f"{tmp_path}/part{k}/.", str(merged)], check=True)
        before = cell_files(merged)
        assert sweep(*ask, "-o", merged).exit_code == 0
        assert cell_files(merged) == before
    assert timeless(merged) == timeless(whole)


def test_a_shard_without_work_says_so(ask: list[object], tmp_path: Path) -> None:
    done = sweep(*ask, "--shard", "5/6", "-o", tmp_path / "d")
    assert done.exit_code == 0 and "nothing to do" in done.output
    assert results(tmp_path / "d")["cells"] == []


@pytest.mark.slow
def test_a_full_disk_leaves_whole_cells_only(ask: list[object], whole: Path, tmp_path: Path) -> None:
    """A limit on file sizes stands for the disk: the largest file of the sweep's cells is too long for it."""
    folder = tmp_path / "full"
    largest = max(p.stat().st_size for p in (whole / "cells").iterdir())
    room = largest - 1

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    process = started(*ask, "-o", folder, preexec_fn=limit)
    _, err = process.communicate()
    assert process.returncode == 1 and "could not be written" in err and "Traceback" not in err, err
    assert sweep(*ask, "-o", folder).exit_code == 0
    assert timeless(folder) == timeless(whole)


def test_folders_that_can_not_be_used(ask: list[object], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    for place, said in (
        (tmp_path / "file" / "d", "can't be made"),
        (tmp_path / "mine", "has no sweep, but other files"),
    ):
        done = sweep(*ask, "-o", place)
        assert isinstance(done.exception, RequestError) and said in str(done.exception)
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    if os.geteuid():
        (tmp_path / "shut").mkdir(mode=0o500)
        assert isinstance(sweep(*ask, "-o", tmp_path / "shut").exception, RequestError)


@pytest.mark.slow
def test_gates_windows_and_backends(ask: list[object], tmp_path: Path) -> None:
    done = sweep(
        *ask, "--seeds", "0", "--tau", "off,0", "--gate", "row,pair", "--window", "off,6",
        "--backend", "torch,fpga-sim", "-o", tmp_path / "d", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.exception
    data = json.loads(done.stdout)
    assert data == results(tmp_path / "d")
    assert len(data["cells"]) == 2 * 2 * 2 * 3
    assert len(data["summary"]) == 2 * 2 * 3
    for cell in data["cells"]:
        assert (cell["fpga"] is None) == (cell["backend"] == "torch")
        if cell["fpga"]:
            assert cell["fpga"]["cycles"] > 0 and cell["fpga"]["energy_j"] > 0
    first = [c for c in data["cells"] if c["prompt"] == BALL and c["window"] is None and c["backend"] == "torch"]
    assert [(c["tau"], c["gate"]) for c in first] == [(None, "row"), (0, "row"), (0, "pair")]
    assert first[1]["digest"] != first[2]["digest"] or first[1]["replay"] != first[2]["replay"]


def test_dry_run_writes_nothing_and_knows_what_is_left(ask: list[object], whole: Path, tmp_path: Path) -> None:
    done = sweep(*ask, "--dry-run", "--json", "-o", tmp_path / "new")
    assert done.exit_code == 0, done.exception
    plan = json.loads(done.stdout)
    assert (plan["cells"], plan["decodes"], plan["left"]) == (20, 20, 20) and plan["expected_s"]["torch"] > 0
    assert not (tmp_path / "new").exists()
    before = cell_files(whole)
    plan = json.loads(sweep(*ask, "--repeats", "2", "--seeds", "0-2", "--dry-run", "--json", "-o", whole).stdout)
    assert (plan["cells"], plan["decodes"], plan["left"]) == (30, 60, 40)
    assert cell_files(whole) == before
    assert "expected" in sweep(*ask, "--dry-run").output


def test_names_of_vbench(ask: list[object], tmp_path: Path) -> None:
    done = sweep(*ask, "--tau", "off,0", "--names", "vbench", "-o", tmp_path / "d")
    assert done.exit_code == 0, done.exception
    top = tmp_path / "d" / "vbench"
    wanted = {f"{p}-{i}.mp4" for p in (BALL, STAR) for i in (0, 1)}
    for folder in ("dense_torch", "tau0_row_torch"):
        assert {p.name for p in (top / folder).iterdir()} == wanted
    assert read_recipe(top / "tau0_row_torch" / f"{STAR}-1.mp4")["seed"] == 1
    assert read_recipe(top / "tau0_row_torch" / f"{STAR}-1.mp4")["settings"]["replay"]["tau"] == 0
    assert sweep(*ask, "--tau", "off,0", "--names", "vbench", "-o", tmp_path / "d").exit_code == 0


def test_help_and_errors_of_the_program(run: Run) -> None:
    done = run("sweep", "--help")
    assert done.returncode == 0 and "--tau" in done.stdout
    for arguments in ((), ("a ball", "--tau", "x", "-o", "d")):
        done = run("sweep", *arguments)
        assert done.returncode == 2 and "Traceback" not in done.stderr, (arguments, done.stderr)


def test_a_sweep_ends_with_its_report(whole: Path) -> None:
    assert (whole / "report.html").stat().st_size > 1000


def test_errors_end_a_run(ask: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up while a cell is renamed: the error names the file, the cells before stay."""
    real = Path.replace
    seen = []

    def replace(self: Path, target: Path) -> Path:
        if str(target).endswith(".json") and "cells" in str(target):
            seen.append(target)
            if len(seen) == 4:
                raise OSError(28, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    done = sweep(*ask, "-o", tmp_path / "d")
    assert isinstance(done.exception, RunError) and "No space left" in str(done.exception)
    assert len(list((tmp_path / "d" / "cells").glob("[!.]*.json"))) == 3
    assert not list((tmp_path / "d" / "cells").glob(".*"))


@pytest.mark.parametrize("axis", ["window", "tau", "repeats"])
def test_a_plan_of_other_types_is_refused(ask: list[object], whole: Path, axis: str) -> None:
    document = json.loads((whole / "sweep.json").read_text())
    document["plan"][axis] = "x"
    (whole / "sweep.json").write_text(json.dumps(document))
    done = sweep(*ask, "-o", whole)
    assert isinstance(done.exception, RequestError) and f"key 'plan.{axis}'" in str(done.exception)
