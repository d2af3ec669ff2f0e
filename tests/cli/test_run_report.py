"""The report of a run, read before its end and after a second run of the same pipeline."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from support.sweeping import tiny_folder

from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.decoding import trace
from fastcar_cli.models import load
from fastcar_cli.pipeline.pipeline import VideoPipeline

SAID = "a red ball"


def _pipe(folder: Path, **sections: dict[str, object]) -> VideoPipeline:
    config = {"model": str(tiny_folder(folder)), "generation": {"frames": 3}, **sections}
    return VideoPipeline.from_config(RunConfig.from_dict(config))


def test_a_report_on_the_way_does_not_stand_for_the_end(tmp_path: Path) -> None:
    pipe = _pipe(tmp_path, backend={"name": "fpga-sim"}, replay={"tau": 0})
    seen = []
    for _ in pipe.stream([SAID], [1]):
        emulated = pipe.emulated()
        assert emulated is not None and emulated == pipe.emulated()
        seen.append(pipe.report(0)["backend"]["cycles"])
    assert seen == sorted(set(seen)) and len(seen) == 3
    assert pipe.report(0)["backend"]["cycles"] == seen[-1]


@pytest.mark.parametrize("tau", ["off", -2])
def test_frames_that_were_not_decoded_have_no_ratio(tmp_path: Path, tau: object) -> None:
    pipe = _pipe(tmp_path, replay={"tau": tau})
    counts = [len(pipe.report(0)["replay"]["by_frame"]) for _ in pipe.stream([SAID], [1])]
    assert counts == [1, 2, 3]


@pytest.mark.slow
def test_times_of_a_second_run_are_its_own(tmp_path: Path) -> None:
    pipe = _pipe(tmp_path)
    list(pipe.stream([SAID], [1]))
    time.sleep(1.0)
    list(pipe.stream([SAID], [2]))
    timing = pipe.report(0)["timing"]
    assert timing["first_frame_s"] <= timing["total_s"]


def test_one_threshold_in_a_list_is_that_of_all_layers(tmp_path: Path) -> None:
    model = load(str(tiny_folder(tmp_path)))
    codes = torch.zeros(
        1, 3 * model.network.spec.tokens_per_frame, model.network.spec.frame_spec.depth, dtype=torch.int64
    )
    several, one = (trace(model, [SAID], codes, tau=tau) for tau in ([-2.0], -2.0))
    assert torch.equal(several.replayed, one.replayed)
    assert torch.equal(several.tas.nan_to_num(-1), one.tas.nan_to_num(-1))
