"""Commands about checkpoints: `dummy` writes one with random weights, `store` makes its files smaller,
`conversion-error` measures what formats cost.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fastcar_cli.cli.flags import one_of, refuse
from fastcar_cli.cli.options import Debug
from fastcar_cli.errors import RequestError


def dummy(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Folder to write.")],
    format_: Annotated[
        str, typer.Option("--format", help="Model with the same shapes: vila-u, ivideogpt, cosmos or rlvr.")
    ] = "vila-u",
    layers: Annotated[
        int | None, typer.Option(help="Layers of vila-u or cosmos. [default: 2, or all of cosmos]", min=1)
    ] = None,
    shards: Annotated[int, typer.Option(help="Number of weights files of vila-u's decoder.", min=1)] = 1,
    medium: Annotated[bool, typer.Option("--medium", help="ivideogpt with 436 M parameters instead of 138 M.")] = False,
    pixels: Annotated[int, typer.Option(help="Side of ivideogpt's frames: 64 or 256.")] = 64,
    context: Annotated[int, typer.Option(help="Number of context frames of ivideogpt.", min=1)] = 2,
    actions: Annotated[
        int | None, typer.Option(help="Numbers of an action of ivideogpt. [default: it takes none]", min=1)
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Format of the weights. [default: bfloat16, or float32]")] = None,
    size: Annotated[str, typer.Option(help="Which cosmos model: 4b, 5b, 12b or 13b.")] = "4b",
    debug: Debug = False,
) -> None:
    """Write a checkpoint in a released model's format and size, with random weights."""
    from fastcar_cli.models.checkpoint import DTYPES
    from fastcar_lab.dummy import cosmos, ivideogpt, rlvr, vila_u

    one_of("--format", format_, ("vila-u", "ivideogpt", "cosmos", "rlvr"))
    one_of("--dtype", dtype, DTYPES)
    if format_ != "ivideogpt":
        refuse(ctx, ("medium", "pixels", "context", "actions"), f"with --format {format_}", "leave it out")
    if format_ != "cosmos":
        refuse(ctx, ("size",), f"with --format {format_}", "leave it out")
    if format_ == "cosmos":
        refuse(ctx, ("shards",), "with --format cosmos", "leave it out")
        one_of("--size", size, cosmos.SIZES)
        dtype, shape = dtype or "bfloat16", cosmos.shape_of(size)
        layers = layers or shape.decoder.layers
        model = cosmos.write(folder, replace(shape, decoder=replace(shape.decoder, layers=layers)), DTYPES[dtype])
        typer.echo(f"{model}: {layers} layers of full width in {dtype}, random weights, its tokenizer beside it")
        return
    if format_ == "vila-u":
        dtype, layers = dtype or "bfloat16", layers or 2
        vila_u.write(folder, layers=layers, dtype=DTYPES[dtype], shards=shards)
        typer.echo(f"{folder}: {layers} layers of full width in {dtype}, random weights")
        return
    refuse(ctx, ("layers", "shards"), f"with --format {format_}", "leave it out")
    dtype = dtype or "float32"
    if format_ == "rlvr":
        for kind in rlvr.KINDS:
            model = rlvr.write(folder, rlvr.shape_of(kind), DTYPES[dtype])
            typer.echo(f"{model}: random weights in {dtype}, its tokenizer beside it")
        return
    one_of("--pixels", str(pixels), [str(side) for side in ivideogpt.PIXELS])
    spec = ivideogpt.shape_of(pixels, medium=medium)
    spec = replace(spec, tokenizer=replace(spec.tokenizer, context=context), actions=actions or 0)
    ivideogpt.write(folder, spec, DTYPES[dtype])
    typer.echo(f"{folder}: random weights in {dtype}")


def store(
    model: Annotated[str, typer.Argument(help="Name or folder of the model.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write.")],
    base: Annotated[
        str | None, typer.Option(help="Name of a folder beside the output. What it holds too is left out.")
    ] = None,
    fine: Annotated[
        list[str] | None, typer.Option(help="Beginning of names that get 12 bits instead of 8; repeat it.")
    ] = None,
    whole: Annotated[list[str] | None, typer.Option(help="Beginning of names that stay float16; repeat it.")] = None,
    debug: Debug = False,
) -> None:
    """Store a model folder in smaller files, in the format of the bundled models."""
    from fastcar_lab import storage

    before, after = storage.store(model, output, base, fine or (), whole or ())
    typer.echo(f"{output}: {after:,} bytes, before {before:,}")


def text_embedding(
    text: Annotated[str, typer.Argument(help="What the video shows.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File (.npy) to write.")],
    encoder: Annotated[str, typer.Option(help="T5 encoder of transformers: a name or a folder.")] = "google-t5/t5-11b",
    debug: Debug = False,
) -> None:
    """Write a text embedding for models such as cosmos-predict1-5b-video2world."""
    import numpy as np
    import torch
    from transformers import AutoTokenizer, T5EncoderModel

    try:
        ids = AutoTokenizer.from_pretrained(encoder)(text, return_tensors="pt", truncation=True, max_length=512)
        model = T5EncoderModel.from_pretrained(encoder)
    except (OSError, ValueError) as e:
        raise RequestError(str(e).partition("\n")[0], key="encoder", value=encoder) from None
    with torch.inference_mode():
        vectors = model(**ids).last_hidden_state[0].float().numpy()
    np.save(output, vectors)
    typer.echo(f"{output}: {len(vectors)} vectors of {vectors.shape[1]}")


def conversion_error(
    model: Annotated[str, typer.Argument(help="The model, which is the reference in float32.")],
    folders: Annotated[list[str] | None, typer.Argument(help="Folders that it was converted to.")] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="Prompt; repeat it. [default: two of the bundled]")] = None,
    fpga: Annotated[list[str] | None, typer.Option(help="Accelerator preset or YAML file; repeat it.")] = None,
    frames: Annotated[int, typer.Option(help="Number of frames to decode.", min=1)] = 2,
    debug: Debug = False,
) -> None:
    """Decode prompts in float32, run each weight format on these codes, and print its error as a line of JSON."""
    from fastcar_lab.conversion_error import PROMPTS, compare

    for line in compare(model, folders or (), prompt or PROMPTS, frames, fpga or ()):
        typer.echo(json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in line.items()}))
