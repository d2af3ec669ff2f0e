"""Metrics against their definitions and against the libraries' own figures."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from support.sweeping import BALL, results, sweep

from fastcar_cli.checkpoints.open import folder_of
from fastcar_cli.config.run_config import load_config
from fastcar_cli.errors import RequestError
from fastcar_cli.media.metrics import scales_of
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.sweep.metrics import Scorer
from fastcar_cli.sweep.results import inert, knees
from fastcar_lab.worlds.mini.render import render
from fastcar_lab.worlds.mini.scene import Scene
from fastcar_lab.worlds.mini.world import WORLD

ALL = Scorer(("psnr", "ssim", "ms-ssim", "temporal"))


def _video(seed: int, frames: int = 3, side: int = 64) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (frames, side, side, 3)).astype(np.uint8)


def _noisy(video: NDArray[np.uint8], amount: float, seed: int = 1) -> NDArray[np.uint8]:
    noise = np.random.default_rng(seed).normal(0, amount, video.shape)
    return np.clip(video + noise, 0, 255).astype(np.uint8)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([1.0, 10.0, 60.0]))
def test_psnr_and_ssim_equal_scikit_images(seed: int, amount: float) -> None:
    reference = _video(seed)
    video = _noisy(reference, amount)
    means, frames = ALL.score(video, reference)
    assert means["psnr_db"] == pytest.approx(peak_signal_noise_ratio(reference, video, data_range=255), abs=1e-9)
    for t in range(3):
        psnr = peak_signal_noise_ratio(reference[t], video[t], data_range=255)
        ssim = structural_similarity(reference[t], video[t], channel_axis=2, data_range=255)
        assert frames["psnr_db"][t] == pytest.approx(psnr, abs=1e-9)
        assert frames["ssim"][t] == pytest.approx(ssim, abs=1e-9)
    assert means["ssim"] == pytest.approx(np.mean(frames["ssim"]), abs=1e-9)


def test_identical_videos() -> None:
    means, frames = ALL.score(_video(0), _video(0))
    assert means["psnr_db"] is None and frames["psnr_db"] == [None] * 3
    assert means["ssim"] == 1 and means["ms_ssim"] == pytest.approx(1) and means["temporal"] == 0


def test_temporal_sees_a_frozen_video_and_not_a_constant_offset() -> None:
    moving = np.zeros((4, 64, 64, 3), np.uint8)
    for t in range(4):
        moving[t] = 20 * t
    frozen = np.repeat(moving[:1], 4, 0)
    assert ALL.score(frozen, moving)[1]["temporal"] == [None, 20, 20, 20]
    assert ALL.score(moving + np.uint8(9), moving)[0]["temporal"] == 0


def test_ms_ssim_takes_the_scales_that_fit() -> None:
    assert [scales_of(s) for s in (8, 11, 21, 22, 44, 64, 99, 176, 256)] == [0, 1, 1, 2, 3, 3, 4, 5, 5]
    values = [ALL.score(_noisy(_video(0), a), _video(0))[0]["ms_ssim"] for a in (2, 20, 80)]
    assert all(v is not None for v in values) and 1 > values[0] > values[1] > values[2] >= 0  # type: ignore[operator]


def test_ms_ssim_of_one_scale_is_gaussian_ssim() -> None:
    reference = _video(3, 1, 21)
    video = _noisy(reference, 30)
    _, image = structural_similarity(
        reference[0], video[0], channel_axis=2, data_range=255, full=True,
        gaussian_weights=True, sigma=1.5, use_sample_covariance=False,
    )  # fmt: skip
    # torchmetrics takes the borders in, mirrored a little differently from scipy's filter.
    assert ALL.score(video, reference)[0]["ms_ssim"] == pytest.approx(image.mean(), abs=3e-3)


def test_small_frames_are_refused_for_what_needs_more() -> None:
    with pytest.raises(RequestError, match="7 x 7"):
        ALL.check(4, 4)
    with pytest.raises(RequestError, match="11 x 11"):
        ALL.check(8, 64)


def _shaken(folder: Path) -> Path:
    """The bundled model with noise on its MLPs, so that it has not learned to replay without loss."""
    shutil.copytree(folder_of("mini"), folder)
    weights = load_file(str(folder / "model.safetensors"))
    generator = torch.Generator().manual_seed(0)
    for name, tensor in weights.items():
        if ".mlp." in name and name.startswith("llm."):
            noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std()
            weights[name] = (tensor.float() + 3 * noise).to(tensor.dtype)
    save_file(weights, str(folder / "model.safetensors"))
    return folder


@pytest.mark.slow
def test_a_sweep_measures_decoded_frames(tmp_path: Path) -> None:
    """The figures of a cell are those of frames decoded apart from any sweep, by scikit-image."""
    model = str(_shaken(tmp_path / "model"))
    common = (BALL, "--model", model, "--frames", 3, "--seeds", 4, "--repeats", 1)
    done = sweep(*common, "--tau", "-inf", "-o", tmp_path / "d")
    assert done.exit_code == 0, done.output
    dense, cell = results(tmp_path / "d")["cells"]
    videos = []
    for tau in ("off", -math.inf):
        pipe = VideoPipeline.from_config(
            load_config(None, (), {"model": model, "replay.tau": tau, "generation.frames": 3})
        )
        videos.append(np.stack([f.image for f in pipe.stream([BALL], [4])]))
    psnr = peak_signal_noise_ratio(videos[0], videos[1], data_range=255)
    assert cell["metrics"]["psnr_db"] == pytest.approx(psnr, abs=1e-9)
    assert cell["frames"]["psnr_db"][0] is None
    for t in range(3):
        ssim = structural_similarity(videos[0][t], videos[1][t], channel_axis=2, data_range=255)
        assert cell["frames"]["ssim"][t] == pytest.approx(ssim, abs=1e-9)
    assert cell["replay"]["eligible_ratio"] == 1 and dense["replay"]["ratio"] == 0
    places = np.array(cell["replay"]["map"])
    assert places.shape == (3, 8, 8)
    # The last token is never fed back.
    assert places[0].sum() == 0 and places[1:].sum() == 2 * 64 - 1
    assert set(dense["fidelity"]) >= {"background", "color", "shape", "motion", "size", "all_right"}


def test_fidelity_is_null_for_what_a_reading_leaves_open() -> None:
    drawn = render(Scene("ball", "red", "big", "right", "grass", (8, 32)))
    video = np.asarray(drawn * 255 if drawn.dtype != np.uint8 else drawn).round().astype(np.uint8)
    right = WORLD.judge(video, ["red", "ball", "right"])
    assert (right["color"], right["shape"], right["motion"]) == (True, True, True)
    assert right["size"] is None and right["background"] is None and right["all_right"] is True
    wrong = WORLD.judge(video, ["blue", "ball", "sky", "grass"])
    assert wrong["color"] is False and wrong["background"] is None and wrong["all_right"] is False


def _line(tau: float | str | None, ratio: float, ssim: float | None) -> dict[str, object]:
    setting = {"ratio": None, "score": "tas", "window": None, "gate": "row", "backend": "torch", "draft": "off"}
    return {"tau": tau, **setting, "replay_ratio": ratio, "eligible_ratio": ratio, "ssim": ssim}


def test_the_knee_is_where_quality_starts_to_fall() -> None:
    curve = [
        _line(None, 0, None),
        _line(0.0, 0.3, 0.99),
        _line(-2.0, 0.7, 0.97),
        _line(-4.0, 0.8, 0.7),
        _line("-inf", 0.87, 0.5),
    ]
    assert [k["tau"] for k in knees(curve, ["ssim"])] == [-2.0]
    straight = [_line(None, 0, None), _line(0.0, 0.5, 0.75), _line(-2.0, 1.0, 0.5)]
    assert knees(straight, ["ssim"]) == []
    assert knees(curve[:2], ["ssim"]) == []


def test_inert_thresholds_are_named() -> None:
    found = inert(
        [
            _line(None, 0, None),
            _line(9.0, 0.0, 1.0),
            _line(0.0, 0.4, 0.9),
            _line("-inf", 1.0, 0.5),
            _line(-99.0, 1.0, 0.5),
        ]
    )
    assert [x["tau"] for x in found] == [9.0, -99.0]


_LPIPS = """
import sys, types
import torch
from torch import nn
import numpy as np
from pathlib import Path

class AlexNet(nn.Module):
    "The convolutions of torchvision's AlexNet; only its architecture is needed here."
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(),
            nn.MaxPool2d(3, 2), nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(), nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(), nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2))

vision, models = types.ModuleType("torchvision"), types.ModuleType("torchvision.models")
models.alexnet, vision.models = lambda pretrained=False: AlexNet(), models
sys.modules.update({"torchvision": vision, "torchvision.models": models})
network = AlexNet()
file = Path(sys.argv[1]) / "alex.pth"
torch.save(network.state_dict(), file)

from fastcar_cli.media.metrics import load_lpips
from fastcar_cli.errors import RequestError
from fastcar_cli.checkpoints.open import folder_of
compare = load_lpips(file)
a = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3)).astype(np.uint8)
b = a.copy()
b[1] //= 3
found = compare(b, a)
import lpips
theirs = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False)
wanted = [i.weight.data for i in network.features if isinstance(i, nn.Conv2d)]
got = [m.weight.data for m in theirs.net.modules() if isinstance(m, nn.Conv2d)]
for g, w in zip(got, wanted, strict=True):
    g.copy_(w)
bias = [m.bias.data for m in network.features if isinstance(m, nn.Conv2d)]
for m, w in zip([m for m in theirs.net.modules() if isinstance(m, nn.Conv2d)], bias, strict=True):
    m.bias.data.copy_(w)
theirs.eval()
with torch.no_grad():
    t = [torch.from_numpy(x).permute(0, 3, 1, 2).float() / 127.5 - 1 for x in (b, a)]
    expected = theirs(*t).flatten().tolist()
assert found[0] == 0 and found[1] > 0.01, found
assert np.allclose(found, expected, atol=1e-6), (found, expected)
for content in (b"nonsense", None):
    bad = file.with_name("bad.pth")
    bad.write_bytes(content) if content else torch.save({"features.0.weight": torch.zeros(1, 2)}, bad)
    try:
        load_lpips(bad)
    except RequestError as e:
        assert "bad.pth" in str(e)
    else:
        raise AssertionError("accepted")
"""


def test_lpips_is_the_packages_with_weights_of_the_users(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    if subprocess.run(
        [sys.executable, "-c", "import importlib.util as u, sys; sys.exit(not u.find_spec('lpips'))"]
    ).returncode:
        pytest.skip("the package lpips is not installed")
    done = subprocess.run([sys.executable, "-c", _LPIPS, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_lpips_without_its_file_is_refused(tmp_path: Path) -> None:
    done = sweep(BALL, "--tau", "1", "--lpips-weights", tmp_path / "none.pth", "-o", tmp_path / "d")
    assert isinstance(done.exception, RequestError)
    assert "lpips" in str(done.exception) and not (tmp_path / "d").exists()
