from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcar_cli.config.keys import ReplayKeys
from fastcar_cli.config.presets import presets
from fastcar_cli.config.run_config import RunConfig, load_config, settings
from fastcar_cli.config.tau import Tau
from fastcar_cli.errors import RequestError


@pytest.mark.parametrize(
    ("given", "values", "printed", "plain"),
    [
        ("-2", (-2.0,), "-2", -2.0),
        ("OFF", (math.inf,), "off", None),
        (None, (math.inf,), "off", None),
        (False, (math.inf,), "off", None),
        ("inf", (math.inf,), "off", None),
        ("-2,-4, off", (-2.0, -4.0, math.inf), "-2,-4,off", [-2.0, -4.0, None]),
        ([0, "off", -0.5], (0.0, math.inf, -0.5), "0,off,-0.5", [0.0, None, -0.5]),
        ("-inf", (-math.inf,), "-inf", "-inf"),
        (1e-3, (1e-3,), "0.001", 1e-3),
    ],
)
def test_a_threshold_is_read_and_printed(given: object, values: tuple[float, ...], printed: str, plain: object) -> None:
    tau = Tau.read(given)
    assert tau.values == values
    assert (str(tau), tau.plain()) == (printed, plain)


@pytest.mark.parametrize("given", ["abc", "nan", "", "-2,", "1,nan", "-2;3", "off,x", [], [True], 10**400, object()])
def test_what_is_no_threshold_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match="a number such as -2"):
        Tau.read(given)


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=40))
def test_thresholds_survive_every_way_of_writing_them(values: list[float]) -> None:
    layers = len(values)
    tau = Tau(tuple(values))
    for written in (str(tau), tau.plain(), RunConfig(replay=ReplayKeys(tau=tau)).to_dict()["replay"]["tau"]):
        assert Tau.read(written).by_layer(layers) == tau.by_layer(layers)


@given(st.text(max_size=20))
def test_any_text_is_a_threshold_or_refused(text: str) -> None:
    try:
        tau = Tau.read(text)
    except ValueError:
        return
    assert not any(math.isnan(v) for v in tau.values)


def test_later_layers_win(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("replay: {tau: -4, max_age: 2}\ngeneration: {seed: 1}\n")
    config = load_config(str(file), ["replay.tau=-3", "generation.seed=2"], {"generation.seed": 3})
    assert (config.replay.tau, config.replay.max_age, config.generation.seed) == (Tau((-3.0,)), 2, 3)
    assert load_config().replay.tau.off


@pytest.mark.parametrize("name", presets())
def test_presets_are_valid_and_survive_a_round_trip(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    file = tmp_path / "again.yaml"
    file.write_text(config.to_yaml())
    assert load_config(str(file)) == config


def test_there_are_presets() -> None:
    assert {"mini", "mini-dense"} <= set(presets())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("replay: {tua: -2}", "did you mean 'replay.tau'"),
        ("replya: {tau: -2}", "did you mean 'replay'"),
        ("tau: -2", "did you mean 'replay.tau'"),
        ("replay: {tau: abc}", "replay.tau 'abc': not allowed"),
        ("replay: {tau: .nan}", "nan"),
        ("generation: {frames: 0}", "greater than or equal to 1"),
        ("generation: {frames: many}", "'many'"),
        ("generation: {seed: -5}", "greater than or equal to 0"),
        ("replay: {gate: both}", "'row' or 'pair'"),
        ("backend: {name: fpga}", "'torch'"),
        ("replay: {tau: [1, 2", "not valid YAML"),
        ("- 1\n- 2", "expected a mapping"),
        ("replay: 5", "replay 5: not allowed"),
        ("model: mini\nmodel: mini", "is given twice"),
        ("sampling: {top_p: 0}", "greater than 0"),
    ],
)
def test_bad_yaml_names_file_key_and_what_is_allowed(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(RequestError) as e:
        load_config(str(file))
    message = f"{e.value} {e.value.hint}"
    assert says in message
    assert "bad.yaml" in message


@pytest.mark.parametrize("override", ["replay.tau", "replay.tua=-2", "nothing=1", "replay.tau=x", "=3"])
def test_bad_overrides_are_refused(override: str) -> None:
    with pytest.raises(RequestError, match=f"`overrides` {override}: "):
        load_config(None, [override])


def test_unknown_preset_suggests() -> None:
    with pytest.raises(RequestError, match="did you mean 'mini'"):
        load_config("mni")


def test_missing_file() -> None:
    with pytest.raises(RequestError, match="no such file"):
        load_config("nowhere/x.yaml")


def test_every_key_says_what_it_means() -> None:
    assert all(setting.help for setting in settings().values())


def test_dict_round_trip() -> None:
    config = load_config(None, [], {"replay.tau": -math.inf})
    assert RunConfig.from_dict(config.to_dict()) == config
