"""Official checkpoint layout: what is read, what is refused, what it costs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.processes import Run
from support.vila_u import small

from fastcar_cli.decoding import trace
from fastcar_cli.errors import RequestError
from fastcar_cli.models import load
from fastcar_cli.models.vila_u.checkpoint import VilaUCheckpoint
from fastcar_cli.models.vila_u.text import LlamaTokenizer, templated
from fastcar_cli.weights.tensors import weight_files
from fastcar_lab.dummy.vila_u import FULL, write_configs, write_tokenizer, write_weights


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    def call(suffix: str = ".safetensors", shards: int = 1, name: str = "checkpoint", **changes: Any) -> Path:
        folder = tmp_path / name
        write_configs(folder, **small(**changes))
        write_tokenizer(folder)
        write_weights(folder, torch.float32, suffix=suffix, shards=shards)
        return folder

    return call


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load(str(folder)).network.state_dict())


def test_every_form_of_the_files_gives_the_same_weights(make: Callable[..., Path]) -> None:
    one = weights(make())
    for i, (suffix, shards) in enumerate(((".safetensors", 3), (".bin", 1), (".bin", 2))):
        other = weights(make(suffix, shards, name=f"other{i}"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[k], other[k]) for k in one)


def test_a_folder_named_model_inside_is_the_root(make: Callable[..., Path]) -> None:
    folder = make(name="outer/model")
    assert load(str(folder.parent)).network.spec.decoder.width == 32


@pytest.mark.parametrize(
    "changes",
    [
        {"tower__rqvaesiglip__shared_codebook": False},
        {"projector__mm_projector_type": "linear"},
        {"projector__mm_projector_type": "mlp3x_gelu"},
        {"projector__mm_projector_type": "identity"},
        {"llm__num_key_value_heads": 1},
        {"llm__attention_bias": True},
        {"llm__rope_scaling": {"type": "linear", "factor": 2.0}},
        {"tower__rqvaesiglip__decoder_latent_shape": [4, 4]},
    ],
    ids=lambda c: "-".join(map(str, c.values())),
)
def test_variants_load_and_trace(make: Callable[..., Path], changes: dict[str, Any]) -> None:
    model = load(str(make(**changes)))
    codes = torch.randint(0, 20, (1, 12, 3), generator=torch.Generator().manual_seed(0))
    run = trace(model, ["a red ball"], codes, tau=-1000)
    assert run.replayed[:, :, 4:].all() and not run.replayed[:, :, :4].any()
    side = 8 if "tower__rqvaesiglip__decoder_latent_shape" in changes else 4
    assert run.frames.shape == (1, 3, side, side, 3) and run.frames.isfinite().all()


def test_a_shared_codebook_may_be_repeated_on_disk(make: Callable[..., Path]) -> None:
    folder = make()
    before = weights(folder)
    file = folder / "vision_tower" / "model.safetensors"
    tensors = load_file(str(file))
    first = "rqvaesiglip.quantizer.codebooks.0."
    for d in range(3):
        tensors[f"rqvaesiglip.quantizer.codebooks.{d}.weight"] = tensors[f"{first}weight"].clone()
        tensors[f"rqvaesiglip.quantizer.codebooks.{d}.embed_ema"] = torch.zeros(4)
    tensors["rqvaesiglip.siglip_model.anything"] = torch.zeros(4)
    save_file(tensors, str(file))
    assert all(torch.equal(before[k], v) for k, v in weights(folder).items())


def rewrite(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def retensor(file: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(str(file))
    change(tensors)
    save_file(tensors, str(file))


Q = "model.layers.0.self_attn.q_proj.weight"
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no llm folder": (lambda f: (f / "llm").rename(f / "lm"), "llm"),
    "no tower config": (lambda f: (f / "vision_tower/config.json").unlink(), "vision_tower/config.json is missing"),
    "broken config": (lambda f: (f / "llm/config.json").write_text("{"), "llm/config.json can't be read"),
    "model type": (
        lambda f: rewrite(f / "config.json", lambda d: d.update(model_type="llava")),
        "config.json: key 'model_type' is 'llava'",
    ),
    "no width": (
        lambda f: rewrite(f / "llm/config.json", lambda d: d.pop("hidden_size")),
        "llm/config.json: key 'hidden_size' is missing",
    ),
    "rope": (
        lambda f: rewrite(f / "llm/config.json", lambda d: d.update(rope_scaling={"type": "yarn", "factor": 2})),
        "key 'rope_scaling.type' is 'yarn'",
    ),
    "depth": (
        lambda f: rewrite(f / "vision_tower/config.json", lambda d: d["rqtransformer"].update(block_size=[2, 2, 4])),
        "key 'rqtransformer.block_size' is [2, 2, 4]",
    ),
    "projector": (
        lambda f: rewrite(f / "mm_projector/config.json", lambda d: d.update(mm_projector_type="qformer")),
        "mm_projector/config.json: key 'mm_projector_type' is 'qformer'",
    ),
    "missing shard": (
        lambda f: (f / "llm/model-00002-of-00002.safetensors").unlink(),
        "llm/model-00002-of-00002.safetensors is missing",
    ),
    "truncated shard": (
        lambda f: (f / "llm/model-00001-of-00002.safetensors").write_bytes(
            (f / "llm/model-00001-of-00002.safetensors").read_bytes()[:-100]
        ),
        "llm/model-00001-of-00002.safetensors is damaged",
    ),
    "wrong shape": (
        lambda f: retensor(f / "llm/model-00001-of-00002.safetensors", lambda t: t.update({Q: torch.zeros(3, 3)}))
        if Q in load_file(str(f / "llm/model-00001-of-00002.safetensors"))
        else retensor(f / "llm/model-00002-of-00002.safetensors", lambda t: t.update({Q: torch.zeros(3, 3)})),
        f"key '{Q}': shape [3, 3], expected [32, 32]",
    ),
    "unexpected key": (
        lambda f: retensor(f / "mm_projector/model.safetensors", lambda t: t.update({"surplus": torch.zeros(1)})),
        "mm_projector/model.safetensors has unexpected key 'surplus'",
    ),
    "missing key": (
        lambda f: retensor(f / "mm_projector/model.safetensors", lambda t: t.pop("layers.0.bias")),
        "mm_projector/model.safetensors lacks key 'layers.0.bias'",
    ),
    "no weights": (
        lambda f: (f / "mm_projector/model.safetensors").unlink(),
        "mm_projector/model.safetensors is missing",
    ),
    "no tokenizer": (lambda f: (f / "llm/tokenizer.model").unlink(), "llm/tokenizer.model is missing"),
    "broken tokenizer": (
        lambda f: (f / "llm/tokenizer.model").write_bytes(b"x" * 99),
        "llm/tokenizer.model is damaged",
    ),
    "added tokens": (
        lambda f: rewrite(f / "llm/added_tokens.json", lambda d: d.update({"<vi_start>": 3})),
        "llm/added_tokens.json: token '<vi_start>' has id 3, but the embeddings need id",
    ),
    "broken index": (
        lambda f: (f / "llm/model.safetensors.index.json").write_text("{}"),
        "llm/model.safetensors.index.json can't be read",
    ),
    "index names a file elsewhere": (
        lambda f: (f / "llm/model.safetensors.index.json").write_text('{"weight_map": {"a": "../b.safetensors"}}'),
        "index.json: key 'weight_map' names '../b.safetensors'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(make: Callable[..., Path], name: str) -> None:
    folder = make(shards=2)
    damage, message = DAMAGE[name]
    damage(folder)
    with pytest.raises(RequestError) as caught:
        load(str(folder))
    assert message in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize("damage", [lambda b: b[:-50], lambda b: b"no pickle", lambda b: b""])
def test_damaged_bin_is_named(make: Callable[..., Path], damage: Callable[[bytes], bytes]) -> None:
    file = make(".bin") / "mm_projector" / "pytorch_model.bin"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(RequestError, match="mm_projector/pytorch_model.bin is damaged"):
        load(str(file.parents[1]))


def test_a_pickle_with_code_is_not_run(make: Callable[..., Path], tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    file = make(".bin") / "mm_projector" / "pytorch_model.bin"
    torch.save({"layers.0.weight": Evil()}, file)
    with pytest.raises(RequestError, match="pytorch_model.bin holds objects other than tensors"):
        load(str(file.parents[1]))
    assert not (tmp_path / "ran").exists()


def test_generate_and_dry_run(run: Run, make: Callable[..., Path], tmp_path: Path) -> None:
    folder = make()
    done = run("generate", "a red ball", "--model", str(folder), "--dry-run", "--json", "--tau", "-2")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert list(plan["files"]) == [f"{p}/model.safetensors" for p in ("llm", "vision_tower", "mm_projector")]
    assert not list(tmp_path.glob("*.mp4"))
    done = run("generate", "a red ball", "--model", str(folder), "--tau", "-2", "--seed", "1", "-o", "a.mp4", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["replay"]["tas"] == "released" and report["tokens"] == {
        "text": len(load(str(folder)).tokenizer.read("a red ball").ids), "visual": 32, "rows": 2,
    }  # fmt: skip
    assert report["memory"]["weights_bytes"] == plan["weights_bytes"]
    assert report["memory"]["replay_cache_bytes"] == plan["replay_cache_bytes"]
    assert (tmp_path / "a.mp4").exists()


@pytest.mark.slow
def test_no_network_is_one_sentence(process: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for flags in ((), ("--dry-run",)):
        done = process("generate", "a fox", "--model", "vila-u-7b", *flags)
        assert done.returncode == 1
        assert "could not be fetched" in done.stderr and "Traceback" not in done.stderr


def test_what_does_not_fit_is_refused(run: Run, tmp_path: Path) -> None:
    write_configs(
        tmp_path / "huge",
        **small(
            llm__num_hidden_layers=200,
            llm__hidden_size=16384,
            llm__intermediate_size=65536,
            tower__rqtransformer__input_embed_dim_2=16384,
        ),
    )
    for flags in ((), ("--dry-run",)):
        done = run("generate", "a fox", "--model", "huge", *flags)
        assert done.returncode == 2 and "does not fit" in done.stderr, done.stderr


def test_template_and_special_tokens(make: Callable[..., Path]) -> None:
    assert templated("  a fox \n").endswith(" USER: a fox ASSISTANT: ")
    assert templated(" ").endswith(" USER:ASSISTANT: ")
    folder = make()
    tokenizer = LlamaTokenizer(folder / "llm", 340, 500)
    assert tokenizer.blank()[0] == 1 and tokenizer.blank()[-1] == 338
    for word in ("<vi_start>", "<image>", "</s>"):
        with pytest.raises(RequestError, match=word):
            tokenizer.read(f"a fox {word}")
    with pytest.raises(RequestError, match="too long"):
        tokenizer.read("fox " * 600)


def test_positions_bound_the_frames(run: Run, make: Callable[..., Path]) -> None:
    done = run("generate", "a fox", "--model", str(make(llm__max_position_embeddings=64)), "--frames", "16")
    assert done.returncode == 2 and "allowed: 1 to 15" in done.stderr


MEASURE = """
import resource, sys, torch
from fastcar_cli.models import load
from fastcar_cli.models.vila_u.checkpoint import VilaUCheckpoint
load(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
model = load(sys.argv[2], sys.argv[3])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
print(peak / sum(p.nbytes for p in model.network.parameters()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read the Linux way")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "dtype"), [(".safetensors", "float32"), (".safetensors", "bfloat16"), (".bin", "float32")]
)
def test_loading_holds_no_second_copy(make: Callable[..., Path], suffix: str, dtype: str) -> None:
    wide = {"llm__hidden_size": 1024, "llm__intermediate_size": 4096, "llm__num_hidden_layers": 5,
            "tower__rqtransformer__input_embed_dim_2": 1024}  # fmt: skip
    tiny, big = make(suffix, name="tiny"), make(suffix, name="big", **wide)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tiny), str(big), dtype], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) <= 1.15


def test_spec_of_full_width(tmp_path: Path) -> None:
    write_configs(tmp_path, FULL["llm"], FULL["tower"], FULL["projector"])
    spec = VilaUCheckpoint(tmp_path).read_spec()
    assert (spec.tokens_per_frame, spec.rqvae.frame_size, spec.decoder.head_dim) == (256, (256, 256), 128)
    with pytest.raises(RequestError, match="missing"):
        weight_files(tmp_path / "llm")
