"""The way into the engine's inbox as one step of Redis: each round trip more would delay the first token.

The buckets before the inbox, the inbox itself and what is noted of a page's generation each have a script of
their own. Here these are functions of one script, run in order until one refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from engine.serving import scripts, wire
from engine.serving.errors import explain_outage
from engine.serving.submission import Submission
from playground import asked, keeping, presence, quota, quota_scripts
from playground.quota import Allowance, Subject
from playground.services import ROW_BYTES
from playground.workers import Step, engine_script

_REQUEST_AT = 2
"""Where `submit` and `keep` have the request in their ARGV, counted from 1. Being long, it is sent once."""
_ENTER = f"""
-- ARGV[1] what each step is given: a JSON object of its name to {{KEYS, ARGV}}, without the request, which is
-- ARGV[2]; a step that is not named is left out. Returns the replies of `take`, `admit` and `submit`, as far
-- as they ran: the last of them has refused, or all went well.
local function take(KEYS, ARGV) {quota_scripts.TAKE} end
local function admit(KEYS, ARGV) {quota_scripts.ADMIT} end
local function submit(KEYS, ARGV) {scripts.SUBMIT} end
local function keep(KEYS, ARGV) {asked.KEEP} end
local function watch(KEYS, ARGV) {presence.TOUCH} end
local given, replies = cjson.decode(ARGV[1]), {{}}
for _, name in ipairs({{'submit', 'keep'}}) do
  if given[name] then table.insert(given[name][2], {_REQUEST_AT}, ARGV[2]) end
end
local function run(name, step)
  if not given[name] then return nil end
  local reply = step(given[name][1], given[name][2])
  table.insert(replies, reply)
  return reply
end
if (run('take', take) or 0) ~= 0 then return replies end
local admitted = run('admit', admit)
if admitted and admitted[1] ~= 0 then return replies end
local submitted = run('submit', submit)
if submitted[1] == 'full' or submitted[1] == 'crowded' then return replies end
if given['keep'] then keep(given['keep'][1], given['keep'][2]) end
if given['watch'] then watch(given['watch'][1], given['watch'][2]) end
return replies
"""


async def enter(
    submission: Submission,
    subjects: Sequence[Subject],
    generations: Sequence[str],
    *,
    address: str,
    page_of: str | None,
) -> tuple[int, Allowance]:
    """Takes what `generations` cost from `subjects` and submits the first of them.

    With a session's name in `page_of` the generation is a page's: its bytes count towards what `address`
    may leave, and it is watched and kept for that session until its row is written. Returns its place in the
    queue, and what is left to the last subject. Raises TooMuch, DiskFull, QuotaExceeded, TooManyWaiting,
    QueueFull or QueueUnavailable.
    """
    text, name = submission.json, submission.request.id
    steps: dict[str, Step | None] = {"submit": _without_request(submission.keys, submission.args)}
    if subjects:
        steps["admit"] = quota.admission_step(subjects, generations, requests=len(generations))
    if page_of is not None:
        steps["take"] = keeping.bytes_step(address, ROW_BYTES + len(text.encode()))
        steps["watch"] = Step([], [name])
    if page_of:  # a session without a name cannot come back
        steps["keep"] = _without_request([asked.asked_key(name)], [name, text, page_of])
    given = {name: step for name, step in steps.items() if step is not None}
    with explain_outage():
        reply = await engine_script(_ENTER)(args=[wire.encode(given), text])
    replies = iter(cast("list[Any]", reply))
    if "take" in given:
        keeping.refuse_bytes(next(replies))
    allowance = quota.allowance_of(subjects, next(replies)) if subjects else {}
    return submission.place(next(replies)), allowance


def _without_request(keys: list[str], args: Sequence[Any]) -> Step:
    """What a step is given, but for the request."""
    return Step(keys, [*args[: _REQUEST_AT - 1], *args[_REQUEST_AT:]])
