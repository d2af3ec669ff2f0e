"""VILA-U's text side: LLaMA's sentencepiece tokenizer and the conversation template around a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import OnProgress, Prompt, Reading, text_of
from fastcar_cli.system.plain_data import read_json

SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
"""System text of the template `v1` (vicuna)."""

ADDED = ("<im_start>", "<im_end>", "<vi_start>", "<vi_end>")  # tokens after the base vocabulary, in this order

_RESERVED = (*ADDED, "<image>", "<s>", "</s>", "<unk>")


def templated(prompt: str) -> str:
    """The text before `<vi_start>`, its last space included; for a blank prompt that of the unconditional row."""
    text = prompt.strip()
    return f"{SYSTEM} USER: {text} ASSISTANT: " if text else f"{SYSTEM} USER:ASSISTANT: "


class LlamaTokenizer:
    """BOS, the pieces of the templated prompt, `<vi_start>`.

    `folder` is the `llm` folder of a checkpoint, with tokenizer.model and perhaps added_tokens.json; `vocab` are the
    rows of the embedding table, the added tokens its last four; `limit` is the most ids of a prompt. Raises
    RequestError for a missing or damaged file, and for added tokens that do not fit the table.
    """

    def __init__(self, folder: Path, vocab: int, limit: int) -> None:
        from sentencepiece import SentencePieceProcessor

        file = folder / "tokenizer.model"
        if not file.is_file():
            raise RequestError(f"tokenizer file {file} is missing")
        self._pieces, self._limit = SentencePieceProcessor(), limit
        try:
            self._pieces.Load(str(file))
        except (RuntimeError, OSError) as e:
            raise RequestError(f"tokenizer file {file} is damaged: {e}") from None
        self._bos, count = self._pieces.bos_id(), self._pieces.GetPieceSize()
        if self._bos < 0:
            raise RequestError(f"tokenizer file {file} has no begin-of-sentence token")
        self._start = _added(folder, vocab)
        if count > vocab:
            raise RequestError(f"tokenizer file {file} has {count} tokens, but the embedding table has {vocab} rows")

    def encode(self, prompt: str) -> tuple[int, ...]:
        """Ids of a prompt; an empty one gives the unconditional row."""
        return (self._bos, *self._pieces.EncodeAsIds(templated(prompt)), self._start)

    def read(self, prompt: Prompt, on_progress: OnProgress | None = None) -> Reading:
        """See `PromptReader.read`."""
        prompt = text_of(prompt)
        for token in _RESERVED:
            if token in prompt:
                raise RequestError(f"the prompt holds the special token {token!r}", hint="leave this token out")
        ids = self.encode(prompt)
        if len(ids) > self._limit:
            raise RequestError(
                f"the prompt is too long: {len(ids)} tokens with the chat template, allowed: at most {self._limit}",
                hint="shorten the prompt",
            )
        return Reading(ids, tuple(self._pieces.EncodeAsPieces(prompt.strip())), ())

    def complete(self, reading: Reading, seed: int) -> Reading:
        """The reading unchanged: the seed chooses nothing in this model."""
        return reading

    def blank(self) -> tuple[int, ...]:
        """See `PromptReader.blank`."""
        return self.encode("")

    def notices(self, prompt: Prompt, model: str) -> list[str]:
        """None; raises RequestError like `read`."""
        self.read(text_of(prompt, f"the model {model!r}"))
        return []

    def conditions(self, prompts: Sequence[Prompt], frames: int) -> None:
        """See `PromptReader`: there are none."""


def _added(folder: Path, vocab: int) -> int:
    """Id of `<vi_start>` from added_tokens.json, which must agree with the table's last four rows."""
    expected = vocab - len(ADDED) + ADDED.index("<vi_start>")
    file = folder / "added_tokens.json"
    if not file.is_file():
        return expected
    try:
        start = read_json(file)["<vi_start>"]
    except (KeyError, TypeError):
        raise RequestError(f"{file} has no token '<vi_start>'") from None
    if start != expected:
        raise RequestError(f"{file}: token '<vi_start>' has id {start!r}, but the embeddings need id {expected}")
    return expected
