from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcar_cli.config import RunConfig, allowed_keys, load_config, parse_tau, presets
from fastcar_cli.errors import RequestError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-2", -2.0),
        ("off", "off"),
        ("OFF", "off"),
        ("-2,-4,off", [-2.0, -4.0, "off"]),
        ("-inf", -math.inf),
        ("1e-3", 1e-3),
    ],
)
def test_parse_tau(text: str, value: object) -> None:
    assert parse_tau(text) == value


@pytest.mark.parametrize("text", ["abc", "nan", "", "-2,", "1,nan", "-2;3", "off,x"])
def test_parse_tau_refuses(text: str) -> None:
    with pytest.raises(RequestError, match="`tau`"):
        parse_tau(text)


@given(st.lists(st.one_of(st.just("off"), st.floats(allow_nan=False)), min_size=2, max_size=40))
def test_parse_tau_round_trip(values: list[float | str]) -> None:
    assert parse_tau(",".join(map(str, values))) == values


@given(st.text(max_size=20))
def test_parse_tau_never_breaks(text: str) -> None:
    try:
        tau = parse_tau(text)
    except RequestError:
        return
    for v in tau if isinstance(tau, list) else [tau]:
        assert v == "off" or not math.isnan(float(v))


def test_later_layers_win(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("replay: {tau: -4, max_age: 2}\ngeneration: {seed: 1}\n")
    config = load_config(str(file), ["replay.tau=-3", "generation.seed=2"], {"generation.seed": 3})
    assert (config.replay.tau, config.replay.max_age, config.generation.seed) == (-3.0, 2, 3)
    assert load_config().replay.tau == "off"


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
        ("replay: {tau: abc}", "key 'replay.tau' is 'abc'"),
        ("replay: {tau: .nan}", "nan"),
        ("generation: {frames: 0}", "greater than or equal to 1"),
        ("generation: {frames: many}", "'many'"),
        ("generation: {seed: -5}", "greater than or equal to 0"),
        ("replay: {gate: both}", "'row' or 'pair'"),
        ("backend: {name: fpga}", "'torch'"),
        ("replay: {tau: [1, 2", "not valid YAML"),
        ("- 1\n- 2", "needed: a mapping"),
        ("replay: 5", "'replay'"),
        ("model: mini\nmodel: mini", "stands twice"),
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
    with pytest.raises(RequestError, match="`overrides`"):
        load_config(None, [override])


def test_unknown_preset_suggests() -> None:
    with pytest.raises(RequestError, match="did you mean 'mini'"):
        load_config("mni")


def test_missing_file() -> None:
    with pytest.raises(RequestError, match="no such file"):
        load_config("nowhere/x.yaml")


def test_every_key_says_what_it_means() -> None:
    assert all(allowed_keys().values())


def test_dict_round_trip() -> None:
    config = load_config(None, [], {"replay.tau": -math.inf})
    assert RunConfig.from_dict(config.to_dict()) == config
