"""What people give on the command line: pipes, lists of prompts, names of outputs, seeds, files of settings."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.ivideogpt import write_model
from support.processes import Run

from fastcar_cli.config.presets import parse_yaml
from fastcar_cli.config.run_config import load_config
from fastcar_cli.decoding.sampling import uniforms
from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import prompts_in
from fastcar_cli.media import read_recipe

BALL = "a red ball on the grass"
QUICK = ("--frames", "1", "--seed", "1", "-q")


@pytest.fixture
def pushed(tmp_path: Path) -> Path:
    """A folder with a model of two numbers a frame, an image and actions for it, in three formats."""
    write_model(tmp_path / "tiny", 1, 2)
    frame = np.full((64, 64, 3), (90, 160, 230), np.uint8)
    frame[24:40, 24:40] = (250, 30, 30)
    Image.fromarray(frame).save(tmp_path / "a.png")
    (tmp_path / "m.json").write_text("[[1, 0]]")
    (tmp_path / "m.csv").write_text("x,y\n1,0\n")
    (tmp_path / "h.csv").write_text("0,1\n1,0\n")
    np.save(tmp_path / "m.npy", np.array([[1.0, 0.0]]))
    np.savez(tmp_path / "i.npz", image=frame[None])
    return tmp_path


def _seen(done: subprocess.CompletedProcess[str], folder: Path) -> dict[str, object]:
    assert done.returncode == 0, done.stderr
    given = read_recipe(folder / "o.gif")["input"]
    (folder / "o.gif").unlink()
    return given


def _piped(folder: Path, options: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m fastcar_cli generate --model tiny --frames 2 --seed 1 -q -o o.gif {options}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=folder)


@pytest.mark.slow
def test_pipes_and_standard_input_are_files(pushed: Path) -> None:
    meant = _seen(_piped(pushed, "--input a.png --actions m.json"), pushed)
    assert meant["actions"] == [[1.0, 0.0], [0.0, 0.0]]
    for options in (
        "--input a.png --actions <(cat m.csv)",
        "--input a.png --actions /dev/stdin < m.npy",
        "--input <(cat i.npz) --actions - < m.json",
    ):
        assert _seen(_piped(pushed, options), pushed) == meant, options


@pytest.mark.slow
def test_prompts_and_settings_from_pipes(tmp_path: Path) -> None:
    command = f"{sys.executable} -m fastcar_cli generate --prompts - --config <(echo 'video: {{scale: 2}}') -q --json"
    done = subprocess.run(
        ["bash", "-c", f"printf '{BALL}\\n' | {command} --frames 1 --seed 1 -o out"],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["prompt"], report["video"]["width"]) == (BALL, 128)
    assert json.loads((tmp_path / "out" / "a-red-ball-on-the-grass-s1.json").read_text()) == report


@pytest.mark.slow
def test_warnings_of_libraries_are_not_shown(process: Run, pushed: Path) -> None:
    data, length = (pushed / "a.png").read_bytes(), 33
    control = b"acTL" + bytes(8)  # an animation of 0 frames, of which Pillow warns
    chunk = struct.pack(">I", 8) + control + struct.pack(">I", zlib.crc32(control))
    (pushed / "a.png").write_bytes(data[:length] + chunk + data[length:])
    arguments = ["--model", "tiny", "--input", "a.png", "--actions", "m.json", "--frames", "2", "--seed", "1"]
    done = process("generate", *arguments, "-q", "-o", "o.gif")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_header_of_numbers_is_no_row(run: Run, pushed: Path) -> None:
    ask = ("generate", "--model", "tiny", "--input", "a.png", "--frames", "2", "-q", "-o", "o.gif", "--actions")
    meant = _seen(run(*ask, "m.json"), pushed)
    for text in ("0,1\n1.0,0\n", "0,1\n1,0\n0,0\n"):
        (pushed / "h.csv").write_text(text)
        assert _seen(run(*ask, "h.csv"), pushed) == meant, text
    (pushed / "h.csv").write_text("0,1\n1,0\n")
    done = run(*ask, "h.csv")
    assert done.returncode == 2 and "may be column names or an action" in done.stderr


def test_prompt_files_have_lines_and_comments(run: Run, tmp_path: Path) -> None:
    text = f"# for a talk\r\n\r\n{BALL}\ra blue car\x0b driving\u2028 left\n  # no\n"
    (tmp_path / "list.txt").write_bytes(text.encode())
    done = run("generate", "--prompts", "list.txt", *QUICK, "--json", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert [v["prompt"] for v in json.loads(done.stdout)["videos"]] == [BALL, "a blue car\x0b driving\u2028 left"]


LISTS = {
    "a.json": '["a red ball", {"prompt_en": "a blue car"}, {"prompt": "a star"}]',
    "a.jsonl": '{"prompt_en": "a red ball"}\n\n"a blue car"\r\n{"prompt": "a star"}',
    "a.txt": "\ufeffa red ball\na blue car\n a star",
}


@pytest.mark.parametrize("name", LISTS)
def test_prompts_of_every_kind_of_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(LISTS[name], newline="")
    assert [*prompts_in(tmp_path / name, "p").prompts.values()] == ["a red ball", "a blue car", "a star"]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.txt", LISTS["a.json"].encode(), "is JSON"),
        ("a.txt", LISTS["a.jsonl"].encode(), "is JSON"),
        ("a.txt", b'[\n "a red ball"\n]', "is JSON"),
        ("a.txt", "a red ball".encode("utf-16-be"), "byte 0 is zero"),
        ("a.txt", "a red ball".encode("utf-16"), "is not UTF-8"),
        ("a.json", b'{"prompt": "a red ball"}', "the top level is a dict"),
        ("a.json", b'["a", null]', "entry 1 is not a text"),
        ("a.jsonl", b'"a"\n"b', "is not valid JSON"),
        ("a.jsonl", b"\n", "has no prompt"),
    ],
)
def test_files_that_hold_no_prompts(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(RequestError, match=f"^p: .*{said}"):
        prompts_in(tmp_path / name, "p")


def test_a_pipe_is_called_as_it_was_given(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text("quantum flux\n"))
    writer.start()
    done = run("generate", "--prompts", "pipe", *QUICK, "-o", "out")
    writer.join()
    assert done.returncode == 2 and "--prompts pipe, line 1: the model" in done.stderr


def test_the_line_of_a_refused_prompt(run: Run, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"# mine\n{BALL}\nquantum flux\na blue car\n")
    done = run("generate", "--prompts", "list.txt", *QUICK, "-o", "out")
    assert done.returncode == 2 and "list.txt, line 3: " in done.stderr and not [*tmp_path.rglob("*.mp4")]
    done = run("generate", "--prompts", "list.txt", *QUICK, "--keep-going", "-o", "out")
    assert done.returncode == 1 and sorted(p.stem for p in tmp_path.rglob("*.mp4")) == [
        "a-blue-car-s1", "a-red-ball-on-the-grass-s1"
    ]  # fmt: skip
    (tmp_path / "list.txt").write_text("quantum flux\n")
    assert run("generate", "--prompts", "list.txt", *QUICK, "--keep-going", "-o", "out").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a", "red", "ball"], "did you forget the quotes?"),
        (["clip.mp4"], "did you mean --input clip.mp4?"),
        (["list.txt"], "did you mean --prompts list.txt?"),
        (["a ball", "--config", "/dev/zero"], "is not a regular file"),
        (["a ball", "--set", "replay.tau="], "the value is empty"),
        (["a ball", "-o", "-"], "can't write videos to standard output"),
        (["a ball", "a car", "-o", "a.mp4"], "names one file for 2 videos"),
        (["a ball", "--executor", "graph"], "allowed: auto, native, torch"),
        (["a ball", "a car", "-o", "a.webm"], "names one file for 2 videos"),
        (["a ball", "-o", "pipe.mp4", "--force"], "pipe.mp4 is a pipe or a device"),
        (["--from", "."], "has no fastcar recipe"),
        (["a ball", "--device", "tpu"], "--device 'tpu': not allowed device: auto, cpu, cuda"),
        (["a ball", "--seed", "1_000"], "--seed 1_000: is not a number"),
        (["a ball", "--tau=-1,٣"], "--tau -1,٣: is not a number"),
        (["a ball", "--set", "replay.tau=1_0"], "--set replay.tau=1_0"),
    ],
)
def test_refusals_name_the_way_out(run: Run, tmp_path: Path, arguments: list[str], said: str) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    done = run("generate", *arguments)
    assert done.returncode == 2 and said in " ".join(done.stderr.replace("│", " ").split())
    assert [*tmp_path.iterdir()] == [tmp_path / "pipe.mp4"]


def test_prompts_of_one_word_each_are_noticed(run: Run, tmp_path: Path) -> None:
    done = run("generate", "red", "ball", "--frames", "1", "-o", "out/")
    assert done.returncode == 0 and len([*tmp_path.rglob("*.mp4")]) == 2
    assert "each of the 2 words is a prompt and makes a video: did you forget the quotes?" in done.stderr
    for arguments in (["ball", "--samples", "2"], ["a red ball", "a car"]):
        assert "quotes" not in run("generate", *arguments, "--frames", "1", "-o", "out/").stderr


def test_a_near_word_is_one_that_the_model_understands_alone(run: Run) -> None:
    done = run("generate", "a red ball, no cube, a blu cubes", "--model", "table", "--frames", "1", "-o", "a.mp4")
    assert "does not know 'no' and ignores it\n" in done.stderr
    assert "does not know 'blu' and ignores it; similar known words: blue\n" in done.stderr


def test_an_unknown_instruction_set_is_a_wrong_request(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTCAR_KERNELS_ISA", "mmx")
    done = run("generate", BALL, *QUICK, "-o", "a.gif")
    assert done.returncode == 2 and "FASTCAR_KERNELS_ISA=mmx: allowed on this CPU:" in done.stderr


def test_an_existing_file_stays_without_force(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.gif").write_text("mine")
    done = run("generate", BALL, *QUICK, "-o", "a.gif")
    assert done.returncode == 2 and "--force" in done.stderr and (tmp_path / "a.gif").read_text() == "mine"
    assert run("generate", BALL, *QUICK, "-o", "a.gif", "--force").returncode == 0
    assert (tmp_path / "a.gif").read_bytes().startswith(b"GIF") and len([*tmp_path.iterdir()]) == 1
    done = run("generate", "a blue car", *QUICK[:-1], "-o", "a.gif")
    assert "renamed the existing a.gif to a-2.gif" in done.stderr
    assert [read_recipe(tmp_path / name)["prompt"] for name in ("a.gif", "a-2.gif")] == ["a blue car", BALL]
    assert run("generate", "a blue car", *QUICK, "-o", "a.gif").returncode == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a-2.gif", "a.gif"]


def test_folders_are_made_and_hold_a_file_a_video(run: Run, tmp_path: Path) -> None:
    assert run("generate", BALL, *QUICK, "-o", "new/deep/a.gif").returncode == 0
    assert (tmp_path / "new" / "deep" / "a.gif").is_file()
    kinds = []
    for prompts in ([BALL], [BALL, "a blue car"]):
        folder = tmp_path / f"{len(prompts)}"
        assert run("generate", *prompts, *QUICK, "-o", f"{folder}/").returncode == 0
        kinds.append({p.suffix for p in folder.iterdir()})
    assert kinds == [{".mp4", ".json"}] * 2


def test_the_null_device_takes_a_video(run: Run, tmp_path: Path) -> None:
    done = run("generate", BALL, *QUICK, "--json", "-o", "/dev/null")
    assert done.returncode == 0 and json.loads(done.stdout)["video"]["frames"] == 1
    assert not [*tmp_path.iterdir()] and Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "--input"],
        ["generate", "a ball", "--set", "runtime.keep_prefill="],
        ["generate", "a ball", "-o"],
        ["fpga"],
    ],
)
def test_names_longer_than_a_file_system_takes(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    done = run(*arguments[:-1], arguments[-1] + "x" * 300) if "=" in arguments[-1] else run(*arguments, "x" * 300)
    assert done.returncode == 2 and "can't be a file: File name too long" in done.stderr and not [*tmp_path.iterdir()]


def test_a_long_prompt_without_spaces_is_a_prompt(run: Run) -> None:
    done = run("generate", "红球在草地上滚动" * 40)
    assert done.returncode == 2 and "knows no word of" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["generate", BALL, "--frames", "1", "-o", "a.gif", "--keep-prefill"], "--keep-prefill"),
        (["profile", "--seq", "16", "--repeats", "1", "--save"], "--save"),
    ],
)
def test_pipes_and_devices_take_no_file(run: Run, tmp_path: Path, arguments: list[str], option: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "/dev/full"):
        done = run(*arguments, name)
        assert done.returncode == 2 and f"{option} {name}: is a pipe or a device, expected a file" in done.stderr
    assert [*tmp_path.iterdir()] == [tmp_path / "fifo"] and (tmp_path / "fifo").is_fifo()


def test_a_sidecar_makes_its_video_again(run: Run, tmp_path: Path) -> None:
    assert run("generate", BALL, "--tau", "-1", *QUICK, "-o", "one/").returncode == 0
    [video] = (tmp_path / "one").glob("*.mp4")
    assert run("generate", "--from", str(video.with_suffix(".json")), "-q", "-o", "again.mp4").returncode == 0
    assert (tmp_path / "again.mp4").read_bytes() == video.read_bytes()


def test_home_is_known(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    assert run("generate", BALL, *QUICK, "--output=~/a.mp4").returncode == 0
    assert run("generate", "--from=~/a.mp4", "-q", "-o", "b.mp4").returncode == 0
    assert (tmp_path / "b.mp4").read_bytes() == (tmp_path / "home" / "a.mp4").read_bytes()


def test_the_home_of_nobody_is_no_folder(run: Run) -> None:
    done = run("generate", "--from", "~nobody-here/a.mp4")
    assert done.returncode == 2 and "there is no such video" in done.stderr


def test_all_bits_of_a_seed_count() -> None:
    low, high = uniforms(7, 8, 4), uniforms(7 + 2**32, 8, 4)
    assert not low.equal(high) and not high.equal(uniforms(7 + 2**33, 8, 4))
    assert low[0].tolist() == pytest.approx([0.5349, 0.1988, 0.6592, 0.6569], abs=1e-4)
    assert float(high.min()) >= 0 and float(high.max()) < 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-1", 0.1),
        ("+1.5E3", 1500.0),
        ("0123", 123),
        ("0x1F", "0x1F"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("no", "no"),
        ("on", "on"),
        ("True", True),
        ("~", None),
        ("-.INF", -np.inf),
        ("2001-02-03", "2001-02-03"),
    ],
)
def test_yaml_is_that_of_1_2(text: str, value: object) -> None:
    assert parse_yaml(text) == value and type(parse_yaml(text)) is type(value)


@pytest.mark.parametrize(
    "text", ["1e999", "-1e999", "a: &a [*a]", "[&b [1], *b]", "!!timestamp x", "? [1]\n: 2", "[" * 2000]
)
def test_yaml_that_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_yaml(text)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


def test_numbers_of_settings(tmp_path: Path) -> None:
    assert load_config(None, ["sampling.temperature=1e-1"]).sampling.temperature == 0.1
    assert load_config(None, ["generation.seed=0123"]).generation.seed == 123
    with pytest.raises(RequestError, match="1:30"):
        load_config(None, ["generation.seed=1:30"])


def test_sections_without_keys_and_dotted_keys_of_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("replay:\n  # tau: -2\nvideo: {fps: 8}\n")
    assert load_config(str(tmp_path / "a.yaml")).video.fps == 8
    for text, said in (
        ("replay.tau: -2", "write 'tau' below 'replay:'"),
        ("replay: 3", "allowed: a mapping of keys"),
        ("replay: {1: 2}", "unknown key 'replay.1'"),
    ):
        (tmp_path / "a.yaml").write_text(text)
        done = run("config", "--config", "a.yaml")
        assert done.returncode == 2 and said in done.stderr


def test_a_folder_may_have_a_point_in_its_name(run: Run, tmp_path: Path) -> None:
    assert run("generate", BALL, "--frames", "1", "--seeds", "0-1", "-q", "-o", "run-v1.2").returncode == 0
    assert len([*(tmp_path / "run-v1.2").glob("*.mp4")]) == 2


@pytest.mark.parametrize("name", ["a.json", "a.csv"])
def test_actions_that_are_not_utf_8_are_refused(run: Run, pushed: Path, name: str) -> None:
    (pushed / name).write_bytes(b"1,0\n" + b"\xe9")
    ask = ("generate", "--model", "tiny", "--input", "a.png", "--frames", "2", "-q", "-o", "o.gif")
    done = run(*ask, "--actions", name)
    assert done.returncode == 2 and "is not UTF-8" in done.stderr


def test_json_that_no_file_can_hold(run: Run, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('["a red ball \\ud800"]')
    done = run("sweep", "--prompts", "list.json", "-o", "s")
    assert done.returncode == 2 and "is not valid JSON" in done.stderr and not (tmp_path / "s").exists()


@pytest.mark.slow
def test_a_dry_run_says_how_long_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    few, many = (
        json.loads(run("generate", BALL, "--frames", "2", "--samples", n, "--dry-run", "--json").stdout)
        for n in ("1", "24")
    )
    assert 0 < few["expected_s"] < many["expected_s"] and "steps of" in few["expected_from"]
    assert "at most" in run("generate", BALL, "--frames", "1", "--dry-run").stdout and not [*tmp_path.iterdir()]
