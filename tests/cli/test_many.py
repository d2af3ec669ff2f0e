"""Lists of videos: whole or not there, resumed, shared by machines, the same however they are made."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.processes import Run
from support.sweeping import held, tiny_folder

from fastcar_cli.config.lists import parse_seeds, parse_shard, shard_of
from fastcar_cli.errors import RequestError
from fastcar_cli.media import read_recipe

PROMPTS = ["a red ball on the grass", "a red ball, on the grass", "a blue car", "a green boat on the sea"]


@pytest.fixture
def order(tmp_path: Path) -> list[str]:
    """A list of twelve videos of a tiny model; two prompts have the same name."""
    (tmp_path / "list.txt").write_text("\n".join(PROMPTS))
    return ["generate", "--prompts", str(tmp_path / "list.txt"), "--seeds", "0,5-6",
            "--model", str(tiny_folder(tmp_path / "model"))]  # fmt: skip


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.mp4")}


def _written(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


def _paths(printed: str) -> list[str]:
    return [Path(video["video"]["path"]).name for video in json.loads(printed)["videos"]]


@pytest.mark.slow
def test_every_prompt_with_every_seed_as_one_at_a_time(run: Run, tmp_path: Path, order: list[str]) -> None:
    done = run(*order, "-o", "all", "--json")
    assert done.returncode == 0, done.stderr
    videos = json.loads(done.stdout)["videos"]
    assert [(v["prompt"], v["seed"]) for v in videos] == [(p, s) for p in PROMPTS for s in (0, 5, 6)]
    for video in videos:
        path = tmp_path / video["video"]["path"]
        assert json.loads(path.with_suffix(".json").read_text()) == video
        assert run(
            "generate", video["prompt"], "--seed", str(video["seed"]), "--model", order[-1], "--force", "-o", "one.mp4"
        ).returncode == 0  # fmt: skip
        assert path.read_bytes() == (tmp_path / "one.mp4").read_bytes()
    assert len({*tmp_path.glob("all/*")}) == 2 * len(videos)


def test_only_what_is_missing_or_damaged_is_made_again(run: Run, tmp_path: Path, order: list[str]) -> None:
    folder = tmp_path / "all"
    assert run(*order, "-o", "all").returncode == 0
    before, files = _written(folder), _files(folder)
    lost, cut, alone = "a-blue-car-s0.mp4", "a-blue-car-s5.mp4", "a-blue-car-s6.json"
    (folder / lost).unlink()
    (folder / cut).write_bytes(files[cut][:-100])
    (folder / alone).unlink()
    done = run(*order, "-o", "all", "--json")
    assert done.returncode == 0 and "9 of 12 videos exist already; making the other 3" in done.stderr
    assert json.loads(done.stdout)["there"] == 9 and len(json.loads(done.stdout)["videos"]) == 12
    assert _files(folder) == files
    again = {name for name, state in _written(folder).items() if before[name] != state}
    assert again == {f"a-blue-car-s{seed}.{kind}" for seed in (0, 5, 6) for kind in ("mp4", "json")}


@pytest.mark.slow
def test_shards_are_the_list_and_name_its_files_alike(run: Run, tmp_path: Path, order: list[str]) -> None:
    whole = _paths(run(*order, "-o", "all", "--json").stdout)
    parts = [_paths(run(*order, "-o", "parts", "--shard", f"{k}/5", "--json").stdout) for k in range(1, 6)]
    assert sorted(name for part in parts for name in part) == sorted(whole)
    assert _files(tmp_path / "parts") == _files(tmp_path / "all")
    done = run(*order, "-o", "none", "--shard", "13/13", "--json")
    assert (done.returncode, json.loads(done.stdout)["videos"]) == (0, [])
    assert "nothing to do" in done.stderr


def test_another_video_of_the_name_is_refused_or_forced(run: Run, tmp_path: Path, order: list[str]) -> None:
    assert run(*order, "--shard", "1/12", "-o", "all").returncode == 0
    before = _files(tmp_path / "all")
    done = run(*order, "--tau", "0", "-o", "all")
    said = "a-red-ball-on-the-grass-s0.mp4 already exists and was made with a different recipe"
    assert done.returncode == 2 and said in done.stderr
    assert _files(tmp_path / "all") == before
    assert run(*order, "--tau", "0", "-o", "all", "--force").returncode == 0
    assert _files(tmp_path / "all").keys() > before.keys()


def test_a_prompt_that_is_refused_stays_out_when_it_is_resumed(run: Run, tmp_path: Path, order: list[str]) -> None:
    with (tmp_path / "list.txt").open("a") as file:
        file.write("\nquantum flux\n")
    assert run(*order, "-o", "all").returncode == 2 and not [*tmp_path.glob("all/*")]
    for there in (0, 12):
        done = run(*order, "-o", "all", "--keep-going", "--json")
        assert (done.returncode, json.loads(done.stdout)["there"]) == (1, there)
        assert "line 5" in done.stderr and len(_files(tmp_path / "all")) == 12


def test_a_dry_run_counts_the_batches_of_the_shard(run: Run, order: list[str]) -> None:
    steps = []
    for shard in ("1/1", "1/2"):  # 12 videos, and 6, eight at once
        done = run(*order, "--shard", shard, "--dry-run", "--json")
        assert done.returncode == 0, done.stderr
        steps.append(
            int(json.loads(done.stdout)["expected_from"].split("then ")[1].split(" steps")[0].replace(",", ""))
        )
    assert steps[0] == 2 * steps[1]


def test_the_lists_of_vbench_are_read(run: Run, tmp_path: Path) -> None:
    entries = [{"prompt_en": "a red ball", "dimension": [d]} for d in ("color", "motion")]
    (tmp_path / "list.json").write_text(json.dumps([*entries, {"prompt_en": "quantum flux"}]))
    done = run("generate", "--prompts", "list.json", "--seeds", "0-1", "--frames", "1", "--keep-going", "--json")
    assert done.returncode == 1 and "list.json, prompt 2: " in done.stderr
    assert _paths(done.stdout) == ["a-red-ball-s0.mp4", "a-red-ball-s1.mp4"]


def test_names_of_vbench_are_alone_in_their_folder(run: Run, tmp_path: Path, order: list[str]) -> None:
    (tmp_path / "list.txt").write_text("a red ball, on the grass.\na blue car")
    for shard, there in (("1/2", 0), ("2/2", 0), ("1/1", 6)):
        done = run(*order, "--names", "vbench", "--shard", shard, "--json", "-o", "all")
        assert (done.returncode, json.loads(done.stdout)["there"]) == (0, there), done.stderr
    found = {path.name: read_recipe(path) for path in (tmp_path / "all" / "vbench").iterdir()}
    prompts = ("a red ball, on the grass.", "a blue car")
    meant = {f"{p}-{i}.mp4": (p, seed) for p in prompts for i, seed in enumerate((0, 5, 6))}
    assert {name: (recipe["prompt"], recipe["seed"]) for name, recipe in found.items()} == meant


@pytest.mark.parametrize(
    ("prompts", "said"),
    [("a red/blue ball", "can't be a file name"), ("a red ball\na red ball", "a prompt is given twice")],
)
def test_prompts_that_have_no_name_of_vbench(
    run: Run, tmp_path: Path, order: list[str], prompts: str, said: str
) -> None:
    (tmp_path / "list.txt").write_text(prompts)
    done = run(*order, "--names", "vbench", "-o", "all")
    assert done.returncode == 2 and said in done.stderr and not [*tmp_path.glob("all/*")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "at", "kept"),
    [
        (signal.SIGINT, 3, 1),
        pytest.param(signal.SIGTERM, 4, 2, marks=pytest.mark.slow),  # differs from Ctrl-C by its status only
        (signal.SIGKILL, 4, 1),
    ],
)
def test_a_stop_keeps_what_is_finished(
    run: Run, tmp_path: Path, order: list[str], number: signal.Signals, at: int, kept: int
) -> None:
    # A file is named twice, the first time out of sight: it waits before the second video gets a name.
    folder = tmp_path / "cells" / "all"
    process = held(*order, "-o", str(folder), "--json", at=at, suffix=".mp4")
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert f"{kept} videos are finished; rerun the command for the other {12 - kept}" in stderr
        assert len(json.loads(stdout)["videos"]) == kept
        assert len({*folder.iterdir()}) == 2 * kept
    assert len(_files(folder)) == kept
    assert json.loads(run(*order, "-o", str(folder), "--json").stdout)["there"] == kept
    assert run(*order, "-o", "all").returncode == 0
    assert _files(folder) == _files(tmp_path / "all")
    assert not [*folder.glob(".*")]


@pytest.mark.slow
def test_what_a_killed_run_left_is_removed_by_the_next(run: Run, tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "model")
    order = ["generate", "a red ball", "--seed", "0", "--model", str(model), "-o", str(tmp_path / "cells" / "a.mp4")]
    process = held(*order, at=1, suffix=".mp4")
    running = held(*order, at=1, suffix=".mp4")
    process.kill()
    process.communicate(timeout=300)
    folder = tmp_path / "cells"
    left = {path.name.split("-")[3]: path.name for path in folder.iterdir()}
    assert {*left} == {str(process.pid), str(running.pid)}
    # Of another machine that shares the folder, where some process may have this number.
    machine = left[str(process.pid)].split("-")[2]
    elsewhere = left[str(process.pid)].replace(machine, "0" * len(machine))
    (folder / elsewhere).touch()
    assert run(*order).returncode == 0
    assert {path.name for path in folder.iterdir()} == {"a.mp4", left[str(running.pid)], elsewhere}
    running.kill()
    running.communicate(timeout=300)
    assert run(*order).returncode == 0
    assert {path.name for path in folder.iterdir()} == {"a.mp4", elsewhere}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--seeds", "5-1"], "--seeds 5-1: '5-1' is neither a seed nor a range"),
        (["--seeds", "1,1"], "--seeds 1,1: 1 is given twice"),
        (["--seeds", "0-1", "--seed", "3"], "--seed and --seeds can't be used together"),
        (["--seeds", "0-1", "--samples", "3"], "--samples and --seeds can't be used together"),
        (["--seeds", "0-999999"], "the list has 2,000,000 videos"),
        (["--seeds", "0-1", "-o", "a.mp4"], "-o a.mp4: is a single file, but --seeds makes a folder"),
        (["--seeds", "0-1", "--trace", "a.npz"], "--trace has no effect with --seeds"),
        (["--shard", "3/2"], "--shard 3/2: not a valid shard"),
        (["--engine", "slurm"], "--engine slurm: unknown"),
        (["--workers", "2"], "--workers needs --engine ray"),
    ],
)
def test_what_contradicts_itself_is_refused_first(run: Run, tmp_path: Path, options: list[str], said: str) -> None:
    done = run("generate", "a red ball", "a blue car", *options)
    assert (done.returncode, [*tmp_path.iterdir()]) == (2, [])
    assert said in done.stderr


def test_ray_that_is_not_installed_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = run("generate", "a red ball", "--engine", "ray")
    assert done.returncode == 2 and "--engine ray needs the extra fastcar[ray]" in done.stderr


def test_ray_leaves_the_handler_of_sigterm(run: Run, order: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ray.init` does, this one sets its own, which ends nothing that is in a destructor."""
    handlers: list[Any] = []

    def init(**options: Any) -> None:
        handlers.append(signal.signal(signal.SIGTERM, signal.SIG_IGN))

    fake = SimpleNamespace(
        is_initialized=lambda: False,
        init=init,
        remote=lambda work: SimpleNamespace(options=lambda **resources: work),
        cluster_resources=dict,
        shutdown=lambda: handlers.append(signal.getsignal(signal.SIGTERM)),
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    done = run(*order, "--engine", "ray", "-o", "all")
    assert done.returncode == 2 and "no node of the cluster has a worker's resources" in done.stderr
    assert handlers[0] == handlers[1] != signal.SIG_IGN


@pytest.mark.slow
def test_on_ray_killed_and_resumed(process: Run, tmp_path: Path, order: list[str]) -> None:
    """Slow: a cluster is started twice, which is what a kill has to survive."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'fastcar[ray]'")
    ray = [*order, "--engine", "ray", "--workers", "2", "--json", "-o"]
    folder = tmp_path / "cells" / "all"
    killed = held(*ray, str(folder), at=4, suffix=".mp4")
    killed.kill()
    killed.communicate(timeout=300)
    assert len(_files(folder)) == 1
    done = process(*ray, str(folder))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["there"] == 1
    assert process(*order, "-o", "here").returncode == 0
    assert _files(folder) == _files(tmp_path / "here")


@given(st.lists(st.integers(), max_size=40), st.integers(1, 50))
def test_shards_are_disjoint_and_cover_all(things: list[int], shards: int) -> None:
    parts = [shard_of([*enumerate(things)], f"{k}/{shards}") for k in range(1, shards + 1)]
    assert sorted(thing for part in parts for thing in part) == [*enumerate(things)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


RANGES = st.lists(st.tuples(st.integers(0, 2**63 - 100), st.integers(0, 99)), min_size=1, max_size=5)


@given(RANGES, st.booleans())
def test_seeds_are_those_of_their_ranges(ranges: list[tuple[int, int]], spaced: bool) -> None:
    text = (" , " if spaced else ",").join(str(a) if n == 0 else f"{a}-{a + n}" for a, n in ranges)
    meant = [seed for a, n in ranges for seed in range(a, a + n + 1)]
    if len({*meant}) == len(meant):
        assert parse_seeds(text) == (*meant,)
        return
    with pytest.raises(RequestError, match="is given twice"):
        parse_seeds(text)


@given(st.integers(-5, 20), st.integers(-5, 20))
def test_a_shard_is_one_of_its_whole(k: int, n: int) -> None:
    if 1 <= k <= n:
        assert parse_shard(f"{k}/{n}") == (k, n)
        return
    with pytest.raises(RequestError, match="not a valid shard"):
        parse_shard(f"{k}/{n}")


@given(st.text(alphabet="0123456789/-, ", max_size=8))
def test_a_text_is_read_or_refused(text: str) -> None:
    read: Any
    for read in (parse_seeds, parse_shard):
        try:
            assert len(read(text)) > 0
        except RequestError as e:
            assert len(f"{e}") < 200
