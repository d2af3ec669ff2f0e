"""Odd requests: each ends in an error of ours that says what is wrong, none is taken without a word."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processes import Run
from typer.testing import CliRunner

from fastcar_cli.cli.app import app
from fastcar_cli.cli.flags import flag_of
from fastcar_cli.config.lists import parse_seeds, parse_shard
from fastcar_cli.config.presets import parse_yaml
from fastcar_cli.config.run_config import load_config
from fastcar_cli.config.run_config import settings as keys
from fastcar_cli.config.tau import Tau
from fastcar_cli.errors import FastcarError, Key, RequestError
from fastcar_cli.profile.profiler import parse_lengths
from fastcar_cli.sweep.grid import parse_axis
from fastcar_cli.system.device import out_of_memory

NUMBERS = st.one_of(
    st.integers().map(str),
    st.integers(1, 6000).map(lambda n: "9" * n),
    st.integers(1, 6000).map(lambda n: "0x" + "f" * n),
    st.floats().map(str),
    st.sampled_from([".inf", "-.inf", ".nan", "1e400", "-0.0", "5e-324", "0b_", "0o", "1:99:99", "2001-99-99", "1_0"]),
    st.text(alphabet="0123456789eE+-._xob:,[]{}&*!?k/ \n", max_size=12),
)


@settings(deadline=None)
@given(st.sampled_from([*keys(), "replay", "", "."]), NUMBERS)
def test_a_number_in_yaml_is_a_setting_or_refused(key: str, text: str) -> None:
    try:
        config = load_config(None, [f"{key}={text}"])
    except RequestError as e:
        assert len(f"{e} {e.hint}") < 2000
        return
    assert load_config(None, [f"{key}={text}"]).to_dict() == config.to_dict() != {}


@settings(deadline=None)
@given(
    st.sampled_from([*(partial(parse_axis, n) for n in ("tau", "window")), parse_seeds, parse_shard, parse_lengths]),
    NUMBERS,
)
def test_a_number_on_the_command_line_is_read_or_refused(read: Callable[[str], object], text: str) -> None:
    try:
        found = read(text)
    except RequestError:
        return
    assert found is not None


@given(NUMBERS)
def test_a_number_is_a_threshold_or_refused(text: str) -> None:
    try:
        tau = Tau.read(text)
    except ValueError:
        return
    assert Tau.read(str(tau)) == tau


@given(st.text(max_size=40))
def test_yaml_has_one_kind_of_error(text: str) -> None:
    try:
        parse_yaml(text)
    except ValueError as e:
        assert "\n" not in str(e)


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("key", ["tau: ", "max_age: ", "ratio: ", "tau: [off, "])
def test_a_number_of_many_digits_is_refused(tmp_path: Path, key: str, digits: int) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"replay: {{{key}{'9' * digits}{']' if '[' in key else ''}}}")
    with pytest.raises(RequestError, match=r"a\.yaml"):
        load_config(str(file))


IGNORED = [
    (["fpga", "--table", "--rows", "3"], "--rows", "allowed: --table, --preset, --json"),
    (["fpga", "--table", "--report", "r"], "--report", "--preset"),
    (["fpga", "a.npz", "--seed", "1"], "--seed", "--window"),
    (["fpga", "--sinks", "2"], "--sinks", "--window"),
    (["config", "--keys", "--config", "mini"], "--config", "--keys"),
    (["profile", "--seed", "1"], "--seed", "--decode"),
    (["profile", "--decode", "a car", "--repeats", "2"], "--repeats", "--seq"),
    (["profile", "--fpga", "edge-small"], "--fpga", "--backend fpga-sim"),
    (["profile", "--backend", "fpga-sim", "--threads", "2"], "--threads", "leave --threads out"),
    (["generate", "a car", "--fpga", "edge-small"], "--fpga", "--backend fpga-sim"),
    (["generate", "a car", "-v", "--json"], "--verbose", "leave one of them out"),
]


@pytest.mark.parametrize(("arguments", "flag", "allowed"), IGNORED)
def test_an_option_that_would_be_ignored_is_refused(arguments: list[str], flag: str, allowed: str) -> None:
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, RequestError)
    assert str(error).startswith(f"{flag} has no effect")
    assert allowed in str(error.hint)


@pytest.mark.parametrize("arguments", [["--model", "9" * 400], ["--model", "~nobody/x"], ["-o", f"{'9' * 400}.mp4"]])
def test_a_name_that_no_file_can_have_is_refused_before_the_run(arguments: list[str]) -> None:
    error = CliRunner().invoke(app, ["generate", "a car", *arguments]).exception
    assert isinstance(error, RequestError)


@pytest.mark.parametrize(
    "arguments",
    [["train", "-o", ""], ["train", "--output="], ["sweep", "a car", "-o", ""], ["generate", "a car", "--report", ""]],
)
def test_an_empty_path_is_not_the_current_folder(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, RequestError)
    assert "is empty" in str(error)
    assert list(tmp_path.iterdir()) == []


def test_an_option_without_effect_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(
        app, ["generate", "a car", "--gate", "row", "--sinks", "2", "--frames", "1", "-o", "a.gif"]
    )
    assert done.exit_code == 0, done.exception
    for flag in ("--gate", "--sinks"):
        assert f"{flag} has no effect" in done.stderr


def test_parameters_of_the_library_are_flags_on_the_command_line() -> None:
    flags = {"--tau", "--replay-ratio", "--max-replay-age", "--backend", "--set"}
    named = {
        name: flag_of(name, flags) for name in ("tau", "replay.tau", "replay.ratio", "ratio", "max_age", "backend.name")
    }
    assert named == {
        "tau": "--tau",
        "replay.tau": "--tau",
        "replay.ratio": "--replay-ratio",
        "ratio": "--replay-ratio",
        "max_age": "--max-replay-age",
        "backend.name": "--backend",
    }
    assert flag_of("first_frame_top_p", flags) == "--set sampling.first_frame_top_p"
    assert flag_of("nothing", flags) is None
    error = RequestError("no", key="replay.ratio", value=0.9, allowed="0.5", hint=("less of ", Key("tau")))
    assert (str(error), error.hint) == ("`replay.ratio` 0.9: no", "allowed: 0.5; less of `tau`")
    error.name_of = lambda name: flag_of(name, flags) or name
    assert (str(error), error.hint) == ("--replay-ratio 0.9: no", "allowed: 0.5; less of --tau")
    assert str(RequestError("no", key="replay.ratio", where="a.yaml")) == "a.yaml: replay.ratio: no"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["generate", "a car", "--frames", "9", "--context-policy", "stop"], "--frames 9"),
        (["generate", "a car", "--frames", "0"], "--frames 0: not allowed"),
        (["generate", "a car", "--set", "replay.max_age=0"], "--set"),
        (["generate", "a car", "--frames", "2", "--replay-ratio", "0.9"], "--replay-ratio 0.9"),
        (["sweep", "a car", "--seeds", "x", "-o", "s"], "--seeds x"),
        (["profile", "--seq", "2q"], "--seq 2q"),
        (["fpga", "--model", "mini", "--replay", "0.99"], "--replay 0.99"),
    ],
)
def test_a_command_speaks_of_its_flags(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, FastcarError)
    assert says in str(error) and "`" not in f"{error} {error.hint}"


def test_only_errors_of_memory_are_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as real:
        torch.empty(2**50, dtype=torch.int8)
    assert out_of_memory(real.value)
    assert out_of_memory(MemoryError()) and out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    for other in (
        RuntimeError("the allocation of rows to cores failed"),
        RuntimeError("allocator of another device"),
        ValueError("x"),
    ):
        assert not out_of_memory(other)


@pytest.mark.parametrize(
    "arguments", [["generate", "x", "--model", "`seed`"], ["generate", "x", "-o", "`tau`.xyz"], ["fpga", "`model`.npz"]]
)
def test_backticks_of_a_user_are_no_parameter(run: Run, arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and arguments[-1] in done.stderr, done.stderr


@pytest.mark.parametrize("arguments", [["fpga", ""], ["convert", "", "-o", "c"], ["sweep", "vbench-score", ""]])
def test_an_empty_argument_is_not_the_current_folder(run: Run, arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and "is empty" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["convert", "mini", "-o", "c", "--threads"], ["profile", "--threads"], ["profile", "--repeats"],
     ["train", "-o", "t", "--threads"], ["train", "-o", "t", "--seed"], ["fpga", "--seed"]],
)  # fmt: skip
def test_a_number_of_many_digits_on_the_command_line_is_refused(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    done = run(*arguments, "9" * 400)
    assert done.returncode == 2 and arguments[-1] in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [["generate", "x", "-o", "."], ["generate", "x", "-o", ".mp4"], ["generate", "x", "--trace", "taken.npz"],
     ["generate", "x", "--backend", "fpga-sim", "--report", "taken.txt"], ["profile", "--save", "taken.npz"],
     ["fpga", "--report", "taken.txt"]],
)  # fmt: skip
def test_a_target_of_the_wrong_kind_is_refused_before_the_work(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "taken.npz").mkdir()
    (tmp_path / "taken.txt").touch()
    assert run(*arguments).returncode == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["taken.npz", "taken.txt"]


def test_control_characters_do_not_reach_a_terminal(run: Run) -> None:
    done = run("generate", "x", "--model", "ball\x1b]0;pwned\x07\x1b[31m")
    assert done.returncode == 2 and "pwned" in done.stderr and not {"\x1b", "\x07"} & set(done.stderr)
