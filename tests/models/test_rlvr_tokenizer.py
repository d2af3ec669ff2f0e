"""RLVR-World's tokenizers: recorded outputs of the released code (skipped where absent), and configurations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.paths import GOLDEN_ROBOT as GOLDEN
from torch import Tensor, nn

from fastcar_cli.errors import RequestError
from fastcar_cli.models.convolutions import WIDE, Upsample
from fastcar_cli.models.fsq import codes_of
from fastcar_cli.models.ivideogpt.blocks import CrossAttention, shown_pixels
from fastcar_cli.models.rlvr.tokenizer import CompressiveSpec, CompressiveTokenizer, FrameTokenizer, FrameTokenizerSpec
from fastcar_cli.models.rlvr.tokenizer_files import read_tokenizer

DATA: dict[str, Any] = json.loads((GOLDEN / "golden.json").read_text())["models"] if GOLDEN.is_dir() else {}
golden = pytest.mark.skipif(not DATA, reason=f"no recorded outputs of the released code in {GOLDEN}")
FRAME, ACTION = 320, 13
STRIDE = FRAME + ACTION


@cache
def tensors() -> dict[str, Tensor]:
    return load_file(str(GOLDEN / "golden.safetensors"))


def recorded(key: str) -> Tensor:
    return tensors()[key]


def _loaded(name: str, network: nn.Module) -> Any:
    stored = load_file(str(GOLDEN / "checkpoint" / name / "diffusion_pytorch_model.safetensors"))
    network.load_state_dict({key: tensor.float() for key, tensor in stored.items()})
    return network.eval().requires_grad_(False)


def config_of(name: str) -> Path:
    return GOLDEN / "checkpoint" / name / "config.json"


@cache
def single() -> FrameTokenizer:
    spec = read_tokenizer(config_of("rt1-frame-tokenizer"))
    assert isinstance(spec, FrameTokenizerSpec)
    return _loaded("rt1-frame-tokenizer", FrameTokenizer(spec))


def new_multi() -> CompressiveTokenizer:
    spec = read_tokenizer(config_of("rt1-compressive-tokenizer"))
    assert isinstance(spec, CompressiveSpec)
    return _loaded("rt1-compressive-tokenizer", CompressiveTokenizer(spec))


multi = cache(new_multi)


def frames_of(kind: str) -> Tensor:
    """Float32 [row, frame, 3, H, W] in 0..1."""
    return recorded(f"{kind}/clip").float().div(255.0).permute(0, 1, 4, 2, 3)


def single_codes() -> Tensor:
    """Codes [row, frame, 320]; a token lies between the actions of the fourth frame and the fifth frame."""
    ids = recorded("single/ids").long()
    starts = [STRIDE * t + (t == 4) for t in range(5)]
    return torch.stack([ids[:, start : start + FRAME] for start in starts], 1)


def multi_codes() -> tuple[Tensor, Tensor]:
    """Codes of the context frames [row, 1280], and of the later ones [row, frame, 80]."""
    ids = recorded("multi/ids").long()
    return ids[:, :1280] - DATA["multi"]["first_context"], ids[:, 1280:].unflatten(1, (-1, 80 + ACTION))[..., :80]


def close(found: Tensor, wanted: Tensor, limit: float) -> None:
    assert found.shape == wanted.shape
    assert float((found - wanted.float()).abs().max()) <= limit


def close_bytes(pixels: Tensor, wanted: Tensor) -> None:
    difference = (shown_pixels(pixels).to(torch.uint8).int() - wanted.int()).abs()
    assert int(difference.max()) <= 1 and float((difference > 0).float().mean()) <= 0.002


@contextmanager
def outputs(network: nn.Module, **paths: str) -> Iterator[dict[str, Tensor]]:
    """The first output of each module, by the name of its record."""
    seen: dict[str, Tensor] = {}
    handles = [
        network.get_submodule(path).register_forward_hook(
            lambda module, inputs, output, key=key: seen.setdefault(key, output)
        )
        for key, path in paths.items()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def close_to_records(seen: dict[str, Tensor], part: str) -> None:
    """The first frame's maps to the recorded channels of them."""
    for key, found in seen.items():
        wanted = recorded(f"{part}/{key}")
        close(found[0, : len(wanted)], wanted, 5e-4)


@golden
@torch.inference_mode()
def test_frame_tokenizer_reads_frames() -> None:
    tokenizer, frames = single(), frames_of("single")
    with outputs(tokenizer, encoder_out="encoder.conv_out", down0_out="encoder.down_blocks.0") as seen:
        latents = tokenizer.latents(frames[0, DATA["single"]["decode_frames"]])
    assert len(seen) == 2
    close_to_records(seen, "single/encode")
    close(latents, recorded("single/encode/latent"), 5e-4)
    assert torch.equal(tokenizer.encode(frames.flatten(0, 1)), single_codes().flatten(0, 1))


@golden
@torch.inference_mode()
def test_frame_tokenizer_draws_frames() -> None:
    tokenizer, codes = single(), single_codes()
    paths = {"decoder_mid": "mid_block", "up0_out": "up_blocks.0", "up1_out": "up_blocks.1"}
    with outputs(tokenizer, **{key: f"decoder.{path}" for key, path in paths.items()}) as seen:
        pixels = tokenizer.decode(codes[0, DATA["single"]["decode_frames"]])
    assert len(seen) == 3
    close_to_records(seen, "single/decode")
    close(pixels, recorded("single/decode/frames"), 2e-3)
    close_bytes(tokenizer.decode(codes[-1]), recorded("single/decode/frames_u8"))


@golden
@torch.inference_mode()
def test_frame_tokenizer_draws_ids_that_are_no_codes() -> None:
    ids, wanted = recorded("single/odd/ids").long(), recorded("single/odd/frame_u8")
    assert int(ids.max()) >= DATA["single"]["codes"]
    close_bytes(single().decode(ids.clamp(0, DATA["single"]["codes"] - 1)[None])[0], wanted)
    with pytest.raises(AssertionError):
        close_bytes(single().decode(ids[None])[0], wanted)


@golden
def test_codes_of_ids() -> None:
    levels, count = DATA["single"]["fsq_levels"], DATA["single"]["codes"]
    ids = torch.tensor([0, 1, levels[0], count - 1, count, count + 5])
    assert torch.equal(codes_of(ids, levels), recorded("single/fsq/codes"))


@golden
@torch.inference_mode()
def test_compressive_tokenizer_reads_frames() -> None:
    tokenizer, frames, (context, later) = multi(), frames_of("multi"), multi_codes()
    codes, cross = tokenizer.encode_context(frames[:, 0])
    assert torch.equal(codes, context)
    assert torch.equal(tokenizer.encode_later(frames[:, 1:], cross), later)
    with outputs(tokenizer, context_latent="quant_conv") as seen:
        _, cross = tokenizer.encode_context(frames[:1, 0])
    with outputs(
        tokenizer, cond_encoder_out="cond_encoder.conv_out", cross_out="cond_encoder.cross_att_blocks.0"
    ) as more:
        latents = tokenizer.patches(frames[:1, 1:], cross)
    assert len(seen | more) == 3
    close_to_records(seen | more, "multi/encode")
    close(latents[0], recorded("multi/encode/dynamics_latent"), 5e-4)


@golden
@torch.inference_mode()
def test_compressive_tokenizer_draws_frames() -> None:
    tokenizer, (context, later) = multi(), multi_codes()
    paths = {
        "decoder_mid": "decoder.mid_block",
        "cond_decoder_mid": "cond_decoder.mid_block",
        "cross_out": "cond_decoder.cross_att_blocks.0",
        "up0_out": "cond_decoder.up_blocks.0",
    }
    with outputs(tokenizer, **paths) as seen:
        first, cross = tokenizer.decode_context(context)
        rest = tokenizer.decode_later(later, cross)
    assert len(seen) == 4
    close_to_records(seen, "multi/decode")
    frames = torch.cat([first[:, None], rest], 1)
    close(frames[0, : len(recorded("multi/decode/frames"))], recorded("multi/decode/frames"), 2e-3)
    close_bytes(frames[-1], recorded("multi/decode/frames_u8"))
    alone = tokenizer.decode_later(later[:, -1:], cross)
    close(alone[:, 0], frames[:, -1], 1e-5)


@golden
@pytest.mark.parametrize("name", ["clamped", "modulo"])
@torch.inference_mode()
def test_compressive_tokenizer_draws_ids_that_are_no_codes(name: str) -> None:
    ids, most = recorded("multi/odd/ids").long(), DATA["multi"]["codes"] - 1
    assert int(ids.max()) > most
    # As the released code hands them over, ids of the context frame keep their offset, which the modulo takes away.
    _, cross = multi().decode_context(recorded("multi/ids").long()[:1, :1280])
    drawn = {"clamped": ids.clamp(0, most), "modulo": ids}
    for tried, codes in drawn.items():
        found = multi().decode_later(codes[None, None], cross)[0, 0]
        if tried == name:
            close_bytes(found, recorded(f"multi/odd/{name}_u8"))
        else:
            with pytest.raises(AssertionError):
                close_bytes(found, recorded(f"multi/odd/{name}_u8"))


def share(found: Tensor, wanted: Tensor) -> float:
    return float((found != wanted).float().mean())


def compressed(tokenizer: CompressiveTokenizer, context: Tensor, later: Tensor) -> list[float]:
    """Shares of the codes of the first row's context and later frames that differ from the recorded ones."""
    codes, cross = tokenizer.encode_context(context[None])
    wanted = multi_codes()
    return [share(codes[0], wanted[0][0]), share(tokenizer.encode_later(later[None], cross)[0], wanted[1][0])]


@golden
@torch.inference_mode()
def test_likely_mistakes_change_as_many_codes_as_in_the_released_code() -> None:
    """In the first row, to the code."""
    frames, wrong = frames_of("single")[0], DATA["single"]["wrong_variants"]
    found = share(single().encode(2 * frames - 1), single_codes()[0])
    assert found == wrong["pixels in -1 .. 1: share of codes that change"]
    frames, wrong = frames_of("multi")[0], DATA["multi"]["wrong_variants"]
    dark, bare = 2 * frames - 1, new_multi()
    changed = wrong["pixels in -1 .. 1: share of context and later codes that change"]
    assert compressed(multi(), dark[0], dark[1:]) == changed
    for part in bare.modules():
        if isinstance(part, CrossAttention):
            part.kv_pos_emb.zero_()
            part.q_pos_emb.zero_()
    assert compressed(bare, frames[0], frames[1:]) == wrong["no position embeddings: share"]
    assert compressed(multi(), frames[1], frames[1:]) == wrong["f_0 as context: share"]


@golden
@torch.inference_mode()
def test_frames_drawn_in_bfloat16_differ_a_little() -> None:
    tokenizer, (context, later) = new_multi(), multi_codes()
    pixels, cross = multi().decode_context(context)
    whole = shown_pixels(torch.stack([pixels, multi().decode_later(later[:, :1], cross)[:, 0]]))
    tokenizer.decode_pixels_in(torch.bfloat16)
    pixels, cross = tokenizer.decode_context(context)
    half = shown_pixels(torch.stack([pixels, tokenizer.decode_later(later[:, :1], cross)[:, 0]]))
    assert half.dtype == torch.float32
    assert 0 < float((half - whole).abs().mean()) < 4
    assert torch.equal(tokenizer.encode_context(frames_of("multi")[:, 0])[0], context)


def test_wide_maps_are_doubled_as_narrow_ones_are() -> None:
    torch.manual_seed(0)
    doubled = Upsample(WIDE).requires_grad_(False)
    x = torch.randn(2, WIDE, 5, 7)
    wanted = doubled.conv(nn.functional.interpolate(x, scale_factor=2.0, mode="nearest"))
    close(doubled(x), wanted, 5e-6)
    close(doubled(x.contiguous(memory_format=torch.channels_last)), wanted, 5e-6)


@torch.inference_mode()
def test_wide_networks_give_what_the_same_layers_give_in_usual_order() -> None:
    """The frame tokenizer's decoder layer by layer, each on contiguous maps in float64."""
    torch.manual_seed(0)
    spec = FrameTokenizerSpec(channels=(WIDE, WIDE), blocks=1, latent=4, groups=32, levels=(5, 3))
    tokenizer = FrameTokenizer(spec).eval()
    codes = torch.randint(0, spec.codes, (1, FRAME))
    found, decoder = tokenizer.decode(codes), tokenizer.double().decoder
    vectors = codes_of(codes, spec.levels).double().unflatten(1, spec.grid).permute(0, 3, 1, 2)
    x = decoder.mid_block(decoder.conv_in(tokenizer.post_quant_linear(vectors)))
    x = decoder.get_submodule("up_blocks.1.resnets.0")(decoder.get_submodule("up_blocks.0.resnets.0")(x))
    x = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
    x = decoder.get_submodule("up_blocks.1.upsamplers.0.conv")(x)
    close(found.double(), decoder.conv_out(nn.functional.silu(decoder.conv_norm_out(x))), 1e-4)


FRAME_CONFIG = {"_class_name": "CNNFSQModel256", "block_out_channels": [32, 64], "norm_num_groups": 16}
PAIR_CONFIG = {
    "_class_name": "CompressiveVQModelFSQ",
    "block_out_channels": [32, 64],
    "norm_num_groups": 16,
    "resolution": 64,
}


def read(folder: Path, config: dict[str, Any]) -> FrameTokenizerSpec | CompressiveSpec:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return read_tokenizer(file)


def test_keys_that_are_absent_have_the_defaults_of_the_released_classes(tmp_path: Path) -> None:
    frame = read(tmp_path, {"_class_name": "CNNFSQModel256"})
    assert frame == FrameTokenizerSpec(
        channels=(128, 256, 256, 512, 768), blocks=2, latent=64, groups=32, levels=(7, 5, 5, 5, 5)
    )
    assert (frame.codes, frame.grid, frame.size) == (4375, (16, 20), (256, 320))
    pair = read(tmp_path, {"_class_name": "CompressiveVQModelFSQ", "block_out_channels": [128, 256, 256, 512]})
    assert isinstance(pair, CompressiveSpec)
    assert (pair.blocks, pair.latent, pair.mid_attention, pair.patch, pair.attended) == (1, 3, True, 4, 32)
    assert (pair.codes, pair.dynamics, pair.grid, pair.context_grid) == (4375, 4375, (8, 10), (32, 40))
    assert pair.size == (256, 320)
    assert pair.seen == {2: (32, 40), 3: (32, 40)} and pair.drawn == {-1: (32, 40)}


@pytest.mark.parametrize(
    ("number", "codes"), [(8, 240), (10, 1000), (12, 4375), (14, 15360), (16, 64000), ([3, 4, 5], 60)]
)
def test_levels_by_number_or_as_a_list(number: Any, codes: int, tmp_path: Path) -> None:
    assert read(tmp_path, FRAME_CONFIG | {"fsq_levels": number}).codes == codes
    if isinstance(number, int):
        spec = read(tmp_path, PAIR_CONFIG | {"dyn_fsq_levels": number})
        assert isinstance(spec, CompressiveSpec)
        assert (spec.codes, spec.dynamics) == (4375, codes)


@pytest.mark.parametrize(
    ("base", "changed", "said"),
    [
        (FRAME_CONFIG, {"_class_name": "VQModel"}, "'_class_name' is 'VQModel', expected CNNFSQModel256"),
        (FRAME_CONFIG, {"_class_name": None}, "'_class_name' is None, expected"),
        (FRAME_CONFIG, {"fsq_levels": 9}, "'fsq_levels' is 9, expected one of 8, 10, 12, 14 or 16, or a list"),
        (FRAME_CONFIG, {"fsq_levels": [5, 1]}, r"'fsq_levels' is \[5, 1\]"),
        (FRAME_CONFIG, {"fsq_levels": [5, True]}, r"'fsq_levels' is \[5, True\]"),
        (FRAME_CONFIG, {"fsq_levels": [10**6] * 5}, "'fsq_levels' is"),
        (FRAME_CONFIG, {"fsq_levels": []}, r"'fsq_levels' is \[\]"),
        (FRAME_CONFIG, {"fsq_levels": True}, "'fsq_levels' is True"),
        (FRAME_CONFIG, {"norm_num_groups": 24}, r"'norm_num_groups' is 24, expected a divisor"),
        (FRAME_CONFIG, {"block_out_channels": 128}, "'block_out_channels' is 128, expected a valid tuple"),
        (FRAME_CONFIG, {"up_block_types": ["UpDecoderBlock2D"]}, "'up_block_types' is .*, expected 2 entries"),
        (FRAME_CONFIG, {"down_block_types": ["AttnDown"] * 2}, "'down_block_types.0' is 'AttnDown', expected"),
        (FRAME_CONFIG, {"norm_type": "spatial"}, "'norm_type' is 'spatial', expected 'group'"),
        (FRAME_CONFIG, {"in_channels": 4}, "'in_channels' is 4, expected 3"),
        (PAIR_CONFIG, {"vq_fsq_levels": [8, 6, 5]}, r"'vq_fsq_levels' is \[8, 6, 5\], expected one of 8, .* 16$"),
        (PAIR_CONFIG, {"dyn_fsq_levels": 11}, "'dyn_fsq_levels' is 11, expected one of"),
        (PAIR_CONFIG, {"context_length": 2}, "'context_length' is 2, expected 1"),
        (PAIR_CONFIG, {"resolution": 256}, "'resolution' is 256, expected 64"),
        (PAIR_CONFIG, {"patch_size": 16}, "'patch_size' is 16, expected a divisor of 8"),
        (PAIR_CONFIG, {"block_out_channels": [32, 48]}, "'block_out_channels' is .* expected multiples of 32"),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit_is_refused(
    base: dict[str, Any], changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        read(tmp_path, base | changed)
    assert str(tmp_path / "config.json") in str(caught.value)
