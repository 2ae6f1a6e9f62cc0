"""A token that ends the text ends the generation, unless it is to go on for a measurement."""

from __future__ import annotations

import pytest

from tests.engine.serving.workers import chat, read_story, write_chatterbox


@pytest.mark.slow
def test_only_who_asks_goes_on_after_an_end_token(workers, client, tmp_path):
    workers.start("w", write_chatterbox(tmp_path / "ender", special=("<|im_end|>",)))
    client.submit(chat("ends", tokens=1500))
    client.submit(chat("goes-on", tokens=1500, ignore_eos=True))
    ends, goes_on = read_story(client, "ends"), read_story(client, "goes-on")
    assert (ends.end.finish_reason, goes_on.end.finish_reason) == ("stop", "length")
    assert len(ends.ids) < len(goes_on.ids) == 1500
    assert goes_on.ids[: len(ends.ids)] == ends.ids
