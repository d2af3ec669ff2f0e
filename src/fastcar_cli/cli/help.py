"""Groups of options in the help, and examples of each command."""

from __future__ import annotations

from typing import Any

GROUPS = {
    "Inputs": "--prompts --input --actions --truth --start --step --key --goal --example "
    "--text-embedding --from --continue --keep-going",
    "Model and video": "--output --names --force --model --frames --context --size --seed --seeds --samples --rows "
    "--prompt-tokens --fps --scale",
    "Replay, drafts and attention": "--tau --replay-ratio --replay --score --tas --gate --max-replay-age --draft "
    "--draft-window --axis --window --sinks --kv-dtype --spread --pair-correlation --profile",
    "Sampling": "--cfg --temperature --top-k --top-p",
    "Measurements": "--seq --decode --repeats --metrics --lpips-weights --table --drafts --explain",
    "Weights and machine": "--dtype --depth-dtype --calibrate --pixel-dtype --device --executor --threads --backend "
    "--fpga --preset --keep-prefill --shard --engine --address --workers",
    "Settings and results": "--config --set --dry-run --terminal --port --no-browser --preview --report --trace --save "
    "--compare --json --format --verbose --quiet --debug --help",
}
"""Options by group, in the order of the help."""

GROUP_OF = {flag: group for group, flags in GROUPS.items() for flag in flags.split()}

FEW = 7  # commands with at most this many options have no groups

EXAMPLES = {
    "": """fastcar generate "a red ball rolling to the right on the grass" --tau -2 -o ball.mp4
fastcar models
fastcar help generate""",
    "generate": """fastcar generate "a red ball rolling to the right on the grass" --tau -2 -o ball.mp4
fastcar generate "a red metal ball hits a blue cube" --model table --samples 3 --seed 1 -o balls/
fastcar generate --from ball.mp4 --tau off -o dense.mp4""",
    "convert": """fastcar convert vila-u-7b -o vila-u-int4
fastcar convert table -o table-int8 --dtype int8
fastcar convert vila-u-7b -o vila-u-calibrated --calibrate prompts.txt --threads 8""",
    "play": """fastcar play
fastcar play --input ball.png --tau -2 -o session.mp4
fastcar play --actions keys.csv --json --frames png""",
    "demo": """fastcar demo
fastcar demo --port 8000
fastcar demo --no-browser""",
    "profile": """fastcar profile --seq 512,1k
fastcar profile --model vila-u-7b --seq 2k --backend fpga-sim
fastcar profile --decode "a red ball rolling to the right" --tau -2 --save run.json""",
    "sweep": """fastcar sweep "a red ball rolling to the right on the grass" --tau off,0,-2,-4 -o sweep
fastcar sweep --prompts prompts.txt --seeds 0-3 --replay-ratio 0.5,0.8 -o sweep
fastcar sweep "a green cube on the grass" --axis draft -o drafts""",
    "fpga": """fastcar fpga star.npz --preset edge-small
fastcar fpga --model vila-u-7b --replay 0,0.8 --window 256
fastcar fpga --preset paper-u280 --table""",
    "fpga rtl": """fastcar fpga rtl -o rtl
fastcar fpga rtl star.npz --preset edge-int8 --passes 4 -o rtl --check
fastcar fpga rtl --preset edge-small -o rtl --synth""",
    "models": """fastcar models
fastcar models --json
fastcar models --format md""",
    "models show": """fastcar models show mini
fastcar models show vila-u-7b
fastcar models show ./my-model --json""",
    "pull": """fastcar pull vila-u-7b
fastcar pull ivideogpt-oxe-64-act-free
fastcar pull cosmos-predict1-4b@main""",
    "presets": """fastcar presets
fastcar presets --json
fastcar presets --format csv""",
    "config": """fastcar config --config mini > fastcar.yaml
fastcar config --set replay.tau=-2 --where
FASTCAR_MODEL=table fastcar config --where""",
    "train": """fastcar train -o mini-model
fastcar train --world table --stage tokenizer -o table-model
fastcar train --minutes 60 --threads 2 -o mini-model""",
}
"""Examples by command, ready to copy."""


def arrange(params: list[Any]) -> None:
    """Sort options into groups where they are many and all have one; quote brackets, which rich takes for styles."""
    for param in params:
        if text := getattr(param, "help", None):
            param.help = text.replace(" [default: ", r" \[default: ")
    options = [p for p in params if p.param_type_name == "option" and not p.hidden]
    groups = {p.name: GROUP_OF.get(max(p.opts, key=len), "") for p in options}
    if len(options) > FEW and all(groups.values()):
        for param in options:
            param.rich_help_panel = groups[param.name]
        order = ["", *GROUPS]
        params.sort(key=lambda p: order.index(groups.get(p.name, "")))


def examples(name: str) -> str:
    """The examples at the end of a command's help."""
    return "\n   ".join((" Examples:\n", *EXAMPLES[name].split("\n"))) + "\n" if name in EXAMPLES else ""
