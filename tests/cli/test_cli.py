"""The program: what a user types, sees and finds on disk."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import Run

from fastcar_cli import Frame, __version__
from fastcar_cli.media import read_frames, read_recipe

PROMPT = "a red ball rolling to the right on the grass"
CONTRACT = {
    "model": {"name", "parameters", "layers", "tokens_per_frame", "depth", "dtype", "device"},
    "video": {"path", "frames", "height", "width", "fps"},
    "tokens": {"text", "visual", "rows"},
    "replay": {"ratio", "eligible_ratio", "by_layer", "by_frame"},
    "timing": {
        "load_s",
        "prefill_s",
        "decode_s",
        "first_frame_s",
        "vision_s",
        "total_s",
        "tokens_per_s",
        "mlp_share",
    },
    "memory": {"weights_bytes", "kv_cache_bytes", "replay_cache_bytes", "peak_bytes"},
    "backend": {"name"},
}


def test_prompt_to_mp4_with_the_json_contract(process: Run, tmp_path: Path) -> None:
    done = process("generate", PROMPT, "--tau", "-2", "--seed", "7", "--cfg", "2", "-o", "clip.mp4", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for section, keys in CONTRACT.items():
        assert keys <= set(report[section]), section
    assert (report["version"], report["prompt"], report["seed"], report["tau"]) == (__version__, PROMPT, 7, -2.0)
    assert (report["window"], report["backend"]["name"]) == (None, "torch")
    assert report["tokens"] == {"text": 12, "visual": 512, "rows": 2}
    assert len(report["replay"]["by_layer"]) == report["model"]["layers"]
    assert len(report["replay"]["by_frame"]) == 8
    assert 0 < report["replay"]["ratio"] < report["replay"]["eligible_ratio"] <= 1
    frames = read_frames(tmp_path / "clip.mp4")
    assert frames.shape == (8, 64, 64, 3)
    assert [p.name for p in tmp_path.iterdir()] == ["clip.mp4"]


def test_the_recipe_makes_the_same_video_again(run: Run, tmp_path: Path) -> None:
    assert run("generate", PROMPT, "--tau", "-1", "-o", "one.mp4", "--gate", "row").returncode == 0
    recipe = read_recipe(tmp_path / "one.mp4")
    assert recipe["prompt"] == PROMPT
    done = run("generate", "--from", "one.mp4", "-o", "two.mp4", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["seed"], report["tau"], report["replay"]["gate"]) == (recipe["seed"], -1.0, "row")
    assert np.array_equal(read_frames(tmp_path / "one.mp4"), read_frames(tmp_path / "two.mp4"))


def test_default_name_seed_and_table(run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        done = run("generate", "a blue car", "--model", "mini", "--seed", "3", "--frames", "1", "-v")
        assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a-blue-car-s3-2.mp4", "a-blue-car-s3.mp4"]
    assert done.stderr == ""
    for word in ("seed", "3", "tokens/s", "by layer", "a-blue-car-s3-2.mp4"):
        assert word in done.stdout


def test_many_videos_go_to_a_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a green boat on the sea\n\na pink star\n")
    done = run(
        "generate", "--prompts", "list.txt", "--samples", "2", "--seed", "5", "--frames", "1", "-o", "out/all", "--json"
    )
    assert done.returncode == 0, done.stderr
    videos = json.loads(done.stdout)["videos"]
    assert [(v["prompt"], v["seed"]) for v in videos] == [
        ("a green boat on the sea", 5),
        ("a green boat on the sea", 6),
        ("a pink star", 5),
        ("a pink star", 6),
    ]
    for video in videos:
        path = tmp_path / video["video"]["path"]
        assert path.parent == tmp_path / "out" / "all"
        assert json.loads(path.with_suffix(".json").read_text()) == video


def test_gif_png_and_scale(run: Run, tmp_path: Path) -> None:
    for name in ("clip.gif", "frames"):
        done = run("generate", PROMPT, "--frames", "2", "--scale", "2", "--seed", "1", "-o", name)
        assert done.returncode == 0, done.stderr
    assert read_frames(tmp_path / "frames").shape == (2, 128, 128, 3)
    assert (tmp_path / "clip.gif").exists()


def test_unknown_words_are_reported_and_the_run_continues(run: Run, tmp_path: Path) -> None:
    done = run("generate", "a red triange zzyzx on the grass", "--frames", "1", "-o", "a.mp4", "--json")
    assert done.returncode == 0
    assert "'triange'" in done.stderr
    assert "triangle" in done.stderr
    assert "'zzyzx'" in done.stderr
    json.loads(done.stdout)


def _folder_without_write(tmp_path: Path) -> Path:
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(0o500)
    return folder


BAD: dict[str, tuple[list[str], str]] = {
    "tau word": (["--tau", "abc"], "--tau 'abc': not allowed"),
    "tau nan": (["--tau", "nan"], "nan"),
    "tau 1e999": (["--tau", "-1e999"], "-1e999"),
    "tau list": (["--tau", "-1,-2"], "6 layers"),
    "frames": (["--frames", "0"], "greater than or equal to 1"),
    "too many frames": (["--frames", "9", "--context-policy", "stop"], "1 to 8"),
    "seed": (["--seed", "-5"], "greater than or equal to 0"),
    "seed word": (["--seed", "x"], "--seed"),
    "model": (["--model", "nope"], "mini"),
    "missing yaml": (["--config", "none.yaml"], "no such file"),
    "preset": (["--config", "mnii"], "did you mean 'mini'"),
    "suffix": (["-o", "a.avi"], ".mp4, .gif"),
    "cuda": (["--device", "cuda"], "no CUDA device"),
    "mps": (["--device", "mps"], "no MPS device"),
    "xpu": (["--device", "xpu:1"], "no XPU device"),
    "backend": (["--backend", "fpga"], "--backend"),
    "option": (["--taw", "-2"], "--tau"),
    "set": (["--set", "replay.tua=1"], "did you mean 'replay.tau'"),
    "gate": (["--gate", "both"], "'row' or 'pair'"),
    "from": (["--from", "none.mp4"], "no such video"),
    "prompts": (["--prompts", "none.txt"], "no such file"),
    "window": (["--window", "many"], "--window"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_end_in_one_panel(run: Run, tmp_path: Path, case: str) -> None:
    if case in ("cuda", "mps", "xpu"):
        import torch

        if torch.get_device_module(case).device_count():
            pytest.skip(f"there is a device {case} here")
    arguments, says = BAD[case]
    done = run("generate", PROMPT, *arguments)
    assert done.returncode == 2, done.stderr
    assert says in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert done.stderr.count("Error ─") == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("replay: {tua: -2}", "did you mean 'replay.tau'"),
        ("replay: [", "not valid YAML"),
        ("7", "expected a mapping"),
        ("\x00", "byte 0 is zero"),
    ],
)
def test_bad_yaml(run: Run, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    done = run("generate", PROMPT, "--config", "bad.yaml")
    assert done.returncode == 2
    assert says in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("prompt", ["", "   ", "quantum flux", "red " * 40])
def test_bad_prompts(run: Run, tmp_path: Path, prompt: str) -> None:
    done = run("generate", prompt)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("options", "noted"), [((), True), (("--cfg", "2"), False), (("--tau", "off"), False)])
def test_a_gate_of_pairs_needs_pairs(run: Run, options: tuple[str, ...], noted: bool) -> None:
    done = run("generate", PROMPT, "--frames", "1", "--tau", "-2", "--gate", "pair", *options, "-o", "a.gif")
    assert done.returncode == 0 and ("without guidance (--cfg 1)" in done.stderr) is noted, done.stderr


def test_a_report_beside_a_video_replaces_no_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a-red-ball-s1.json").write_text("mine")
    done = run("generate", "a red ball", "a blue car", "--seed", "1", "--frames", "1", "-q")
    assert done.returncode == 0 and (tmp_path / "a-red-ball-s1.json").read_text() == "mine"
    assert json.loads((tmp_path / "a-red-ball-s1-2.json").read_text())["prompt"] == "a red ball"


def test_no_prompt(run: Run) -> None:
    assert run("generate").returncode == 2


def test_a_folder_that_can_not_be_written(run: Run, tmp_path: Path) -> None:
    import os

    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    done = run("generate", PROMPT, "-o", str(_folder_without_write(tmp_path) / "a.mp4"))
    assert done.returncode == 2
    assert "not writable" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "options", "most"),
    [("a.mp4", "[]", 100), ("d/a-red-ball-s0.mp4", "['--scale', '16', '--seeds', '0-1']", 9999)],
)
def test_a_full_disk(run: Run, tmp_path: Path, output: str, options: str, most: int) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    # RLIMIT_FSIZE makes every write past a few bytes fail, as a full disk does.
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}));"
        f"sys.argv = ['fastcar', 'generate', 'a red ball', '--frames', '2', *{options}];"
        f"sys.argv += ['-o', {output.split('/')[0]!r}];"
        "from fastcar_cli.cli.app import main; main()"
    )
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert f"{output} could not be written: File too large" in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert [p for p in tmp_path.rglob("*") if not p.is_dir()] == []


WAITING = """
import signal, time
from fastcar_cli.cli.app import main
from fastcar_cli.pipeline.pipeline import VideoPipeline

whole = VideoPipeline.stream


def stream(self, *arguments, **more):
    for frame in whole(self, *arguments):
        yield frame
        if frame.index == 1:
            # Handlers, set before it prints: a signal may reach any thread, and Python calls them in this one.
            got = []
            numbers = signal.SIGINT, signal.SIGTERM
            before = [signal.signal(number, lambda number, frame: got.append(number)) for number in numbers]
            print("two frames", flush=True)
            while not got:
                time.sleep(0.01)
            for number, handler in zip(numbers, before):
                signal.signal(number, handler)
            signal.raise_signal(got[0])


VideoPipeline.stream = stream
main()
"""


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, "generate", "a red ball on the grass", "-o", "frames"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "two frames\n", process.communicate()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "finished frames are saved" in stderr
    assert [p.name for p in tmp_path.iterdir()] == ["frames"]
    assert len(read_frames(tmp_path / "frames")) == 2


def test_an_interrupted_mp4_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from fastcar_cli.cli.app import app
    from fastcar_cli.pipeline.pipeline import VideoPipeline

    whole = VideoPipeline.stream

    def stopped(self: VideoPipeline, *arguments: Any, **more: Any) -> Iterator[Frame]:
        for frame in whole(self, *arguments):
            if frame.index == 3:
                raise KeyboardInterrupt
            yield frame

    monkeypatch.setattr(VideoPipeline, "stream", stopped)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["generate", PROMPT, "--seed", "1", "-o", "a.mp4", "--json"])
    assert done.exit_code == 130
    assert len(read_frames(tmp_path / "a.mp4")) == 3


@pytest.mark.slow
def test_missing_kernels_are_a_note_before_the_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from fastcar_cli.cli.app import app
    from fastcar_cli.kernels.native import library

    monkeypatch.setattr(library, "open_library", lambda: "the native kernels are not built: no compiler")
    monkeypatch.chdir(tmp_path)
    command = ["generate", PROMPT, "--seed", "1", "--frames", "1", "-o", "a.gif", "--json"]
    done = CliRunner().invoke(app, command)
    said = "decoding in plain torch, which is many times slower than native kernels: the native kernels are not built"
    assert said in done.stderr
    assert json.loads(done.stdout)["kernels"]["name"] == "torch"
    assert said not in CliRunner().invoke(app, [*command, "--force", "--set", "runtime.executor=torch"]).stderr


def test_a_damaged_model_is_named(run: Run, tmp_path: Path) -> None:
    import fastcar_cli

    source = Path(fastcar_cli.__file__).parent / "assets" / "mini"
    target = tmp_path / "model"
    shutil.copytree(source, target)
    weights = target / "model.safetensors"
    data = weights.read_bytes()
    for broken, says in ((data[: len(data) // 2], "damaged"), (b"", "damaged")):
        weights.write_bytes(broken)
        done = run("generate", PROMPT, "--model", "model")
        assert done.returncode == 2, done.stderr
        assert says in done.stderr
        assert "model.safetensors" in done.stderr
    weights.unlink()
    assert "missing" in run("generate", PROMPT, "--model", "model").stderr
    (target / "config.json").write_text("{")
    assert run("generate", PROMPT, "--model", "model").returncode == 2


def test_config_prints_what_load_reads(run: Run, tmp_path: Path) -> None:
    done = run("config", "--config", "mini", "--set", "replay.tau=-1")
    assert done.returncode == 0
    assert "tau: -1" in done.stdout
    (tmp_path / "again.yaml").write_text(done.stdout)
    assert run("config", "--config", "again.yaml").stdout == done.stdout


def test_the_list_of_commands_imports_none() -> None:
    code = """if True:
        import sys
        from fastcar_cli.cli.app import app
        try:
            app(["--help"])
        except SystemExit:
            print([m for m in ("torch", "av", "numpy", "pydantic", "transformers", "yaml") if m in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "generate" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_the_list_of_commands_says_what_each_says_itself() -> None:
    import typer

    from fastcar_cli.cli.app import app

    group: Any = typer.main.get_command(app)
    root = typer.Context(group)
    names = group.list_commands(root)
    assert {"generate", "fpga rtl", "train", "lab"} <= {*names}
    for name in names:
        listed = group.get_command(root, name)
        own = listed.make_context(name, [], root, resilient_parsing=True).command
        assert listed.help == own.help.split("\n\n")[0], name


def test_version(process: Run) -> None:
    assert process("--version").stdout.strip() == f"fastcar {__version__}"


def test_a_checkout_that_is_not_installed_has_the_laboratory(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: EntryPoints(()))
    done = run("lab", "--help")
    if sys.version_info < (3, 11):
        assert "needs the package fastcar_lab" in done.stderr
    else:
        assert done.returncode == 0 and "gpu-check" in done.stdout


@pytest.mark.parametrize("what", ["rtl", "--table", "--drafts"])
def test_what_fpga_has_of_the_laboratory_names_it(run: Run, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr("fastcar_cli.system.plugins.command", lambda *_: None)
    monkeypatch.delitem(sys.modules, "fastcar_cli.cli.fpga_rtl", raising=False)
    done = run("fpga", what)
    assert done.returncode == 2
    assert f"fastcar fpga {what} needs the package fastcar_lab" in done.stderr
