"""The built-in models of the paced test engine: vocabularies without weights.

words       common words and a newline: text of any length, laid out as the engine's option `line` says
markdown    the pieces of one chat answer in Markdown, which the engine recites over and over: what a page
            has to do to show a long, fast answer
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import tokenizers
from tokenizers import models, pre_tokenizers

from engine.models.catalogue import Model
from engine.models.checkpoints.gguf_vocabulary import Vocabulary
from engine.models.config import ModelConfig
from engine.models.tokenizer import Tokenizer
from engine.models.weights import RandomWeights

WORDS = "words"
MARKDOWN = "markdown"
TURN = "<answer>"
"""The piece after which a chat's answer begins."""
_SPACE = "▁"
_UNKNOWN = _SPACE + "word"
_WORDS = (
    "a all an and any are as async await be break by case class continue def del each elif else except false"
    " finally first for from get global has if import in is it key last list make new next no none not now"
    " of on one or pass print raise range read return say self send set short so take test text that the"
    " this time to token true try two type up use value was what when where while with word yield you"
)
_TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}" + TURN
_ANSWER = """## Reading a file line by line

Open it in a `with` block, so that it is closed **whatever happens**, and go over its lines: the file is read
in pieces, and never held in memory as a whole. That is what makes it fit for logs of any size.

1. Open the file with its encoding named.
2. Take each line as it comes, without its newline.
3. Leave the loop as soon as you have what you need.

```python
def first_match(path, word):
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if word in line:
                return number, line.rstrip("\\n")
    return None
```

| way | memory | when |
|---|---|---|
| `for line in file` | one line | always |
| `file.read()` | all of it | small files |

> A file that another program still writes to may end in half a line.

- *Large files*: the loop costs no more memory than its longest line.
- *Many files*: see [the manual](https://docs.python.org/3/library/fileinput.html) for `fileinput`.

"""


def built_in(name: str) -> Model | None:
    """None if `name` is none of them."""
    made: dict[str, Callable[[], Model]] = {WORDS: words_model, MARKDOWN: markdown_model}
    return made[name]() if name in made else None


def words_model() -> Model:
    return _model(WORDS, _numbered([*_words(), "\n"]), chat=None)


def markdown_model() -> Model:
    """It can chat: a prompt is its messages' words and the piece that begins the answer."""
    return _model(MARKDOWN, _markdown(), chat=_TEMPLATE)


def recital() -> tuple[list[int], int]:
    """The answer's tokens in order, and the token after which it begins, by `markdown_model`'s ids."""
    ids = _markdown()
    return [ids[piece] for piece in _answer_pieces()], ids[TURN]


def _markdown() -> dict[str, int]:
    return _numbered([*_words(), *_answer_pieces(), TURN])


def _answer_pieces() -> list[str]:
    pieces = re.findall(r" ?[A-Za-z]+| ?[^A-Za-z\s]+|\s", _ANSWER)
    return [piece.replace(" ", _SPACE) for piece in pieces]


def _words() -> list[str]:
    return [_SPACE + word for word in _WORDS.split()]


def _numbered(pieces: Iterable[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


def _model(name: str, vocabulary: dict[str, int], chat: str | None) -> Model:
    """The smallest shape that carries the vocabulary; its weights mean nothing."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    if TURN in vocabulary:
        tokenizer.add_special_tokens([TURN])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    config = ModelConfig(
        name=name,
        hidden=2,
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=2,
        ffn=2,
        vocab=len(vocabulary),
        context=1 << 17,
    )
    words = Tokenizer(
        Vocabulary(
            tokenizer=tokenizer,
            byte_level=False,
            special_ids=frozenset({vocabulary[TURN]} if TURN in vocabulary else ()),
            bos_id=None,
            adds_bos=False,
            eos_id=None,
            eos_ids=frozenset(),
            chat_template=chat,
        )
    )
    return Model(config, RandomWeights(config), words, name, name)
