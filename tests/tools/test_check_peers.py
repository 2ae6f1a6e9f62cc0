import numpy as np
import pytest

from engine.errors import CheckpointError
from engine.models.catalogue import open_model
from tools.check_peers import Sequence, check, compare

PROMPT = [5, 6]


def ours(logits: list[list[float]]) -> Sequence:
    rows = np.array(logits, np.float32)
    return Sequence("text", PROMPT, np.argmax(rows, axis=1).tolist(), rows)


def test_equal_choices_agree() -> None:
    result = compare(ours([[1, 4, 0], [9, 0, 0]]), np.array([[1, 3, 0], [8, 0, 2]], np.float32), PROMPT)

    assert (result.equal, result.near_ties, result.disagreements) == (2, 0, 0)
    assert result.logit_max_difference == 2.0
    assert result.agrees


def test_another_choice_is_allowed_where_our_best_two_lie_close() -> None:
    result = compare(ours([[1, 3.9, 4.2]]), np.array([[1, 4.1, 4.0]], np.float32), PROMPT)

    assert (result.near_ties, result.disagreements) == (1, 0)
    assert result.agrees


def test_another_choice_where_we_are_sure_is_a_disagreement() -> None:
    result = compare(ours([[1, 3, 4.2]]), np.array([[1, 4.1, 4.0]], np.float32), PROMPT)

    assert (result.near_ties, result.disagreements) == (0, 1)
    assert result.margins == (1.2,)
    assert not result.agrees


def test_another_cut_of_the_prompt_is_a_disagreement() -> None:
    assert not compare(ours([[0, 1]]), np.array([[0, 1]], np.float32), [5, 7]).agrees


def test_a_model_that_is_no_gguf_file_is_refused() -> None:
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        check(open_model("tiny-llama"))
