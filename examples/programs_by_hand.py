"""The ten programs once more as plain calls, one after the other or many at once: what they are compared with.

``Hand`` says how a call is made; its ``all`` makes several, in order or at the same time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from examples.programs import EXAMPLES, NUM_IDEAS, TOOLS, TRAITS, use_tool

Messages = list[dict[str, str]]


class Hand(Protocol):
    """Calls of a model. A last message by the assistant is gone on with."""

    async def chat(self, messages: Messages, **sampling: Any) -> str: ...

    async def complete(self, text: str, **sampling: Any) -> str: ...

    async def choose(self, prompt: Messages | str, choices: Sequence[str]) -> str: ...

    async def all(self, calls: Sequence[Awaitable[Any]]) -> list[Any]: ...


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


async def multi_turn(hand: Hand, first: str, second: str) -> dict[str, Any]:
    messages = [_message("system", "You are a helpful assistant. Answer in one sentence."), _message("user", first)]
    first_answer = await hand.chat(messages, max_tokens=24)
    messages += [_message("assistant", first_answer), _message("user", second)]
    return {"first_answer": first_answer, "second_answer": await hand.chat(messages, max_tokens=24)}


async def few_shot(hand: Hand, review: str) -> dict[str, Any]:
    text = "Say whether each review is positive or negative.\n\n"
    text += "".join(f"Review: {each}\nLabel: {label}\n\n" for each, label in EXAMPLES)
    return {"label": await hand.complete(f"{text}Review: {review}\nLabel:", max_tokens=3, stop="\n")}


async def tree_of_thought(hand: Hand, question: str) -> dict[str, Any]:
    start = [
        _message("system", "You solve problems step by step."),
        _message("user", f"{question} Give one idea in two sentences."),
    ]

    async def branch(number: int) -> tuple[Messages, str]:
        idea = f"Idea {number + 1}: "
        idea += await hand.chat([*start, _message("assistant", idea)], max_tokens=40)
        messages = [*start, _message("assistant", idea)]
        messages.append(_message("user", "Will this idea lead to the answer? Say yes or no."))
        verdict = await hand.choose([*messages, _message("assistant", "")], ["yes", "no"])
        return [*messages, _message("assistant", verdict)], verdict

    branches = await hand.all([branch(number) for number in range(NUM_IDEAS)])
    messages = next((messages for messages, verdict in branches if verdict == "yes"), branches[0][0])
    messages = [*messages, _message("user", "Work it out and give the answer.")]
    return {"return": await hand.chat(messages, max_tokens=32)}


async def self_consistency(hand: Hand, question: str) -> dict[str, Any]:
    text = f"Question: {question}\nThink briefly, then write the number.\nAnswer:"
    calls = [hand.complete(text, max_tokens=8, temperature=0.8, seed=seed, stop="\n") for seed in range(4)]
    return {"answer": await hand.all(calls)}


async def judge(hand: Hand, essay: str) -> dict[str, Any]:
    start = _message("system", "You judge essays.")
    essay_text = f"Here is an essay.\n\n{essay}\n\n"

    def judgement(trait: str) -> Awaitable[str]:
        messages = [start, _message("user", f"{essay_text}Judge its {trait} in two sentences.")]
        return hand.chat(messages, max_tokens=40)

    found = await hand.all([judgement(trait) for trait in TRAITS])
    said = "\n".join(f"{name}: {text}" for name, text in zip(TRAITS, found, strict=True))
    messages = [start, _message("user", f"{essay_text}Judges said:\n{said}\n\nIs the essay good or bad?")]
    grade = await hand.choose([*messages, _message("assistant", "It is ")], ["good", "bad"])
    more = {"good": ". What I liked most: ", "bad": ". What would make it better: "}[grade]
    messages.append(_message("assistant", f"It is {grade}{more}"))
    return {"judgement": found, "grade": grade, "words": await hand.chat(messages, max_tokens=24, stop="\n")}


async def extract_json(hand: Hand, text: str) -> dict[str, Any]:
    so_far = f'Text: {text}\nThe person in the text as JSON:\n{{"name": "'
    name = await hand.complete(so_far, max_tokens=8, stop='"')
    so_far += f'{name}", "job": "'
    job = await hand.complete(so_far, max_tokens=8, stop='"')
    so_far += f'{job}", "mood": "'
    return {"name": name, "job": job, "mood": await hand.choose(so_far, ["glad", "sad", "calm"])}


async def agent(hand: Hand, question: str) -> dict[str, Any]:
    messages = [_message("system", f"You use one tool at a time: {', '.join(TOOLS)}."), _message("user", question)]
    for _ in range(2):
        tool = await hand.choose([*messages, _message("assistant", "Tool: ")], TOOLS)
        said = f"Tool: {tool}\nNumbers: "
        numbers = await hand.chat([*messages, _message("assistant", said)], max_tokens=8, stop="\n")
        messages.append(_message("assistant", said + numbers))
        if tool == "answer":
            break
        messages.append(_message("user", f"Result: {use_tool(tool, numbers)}"))
    messages.append(_message("assistant", "The answer is "))
    return {"answer": await hand.chat(messages, max_tokens=12)}


async def map_reduce(hand: Hand, parts: Sequence[str]) -> dict[str, Any]:
    start = "Summarise what you are given in a few words.\n\n"
    calls = [hand.complete(f"{start}Text: {part}\nSummary:", max_tokens=16, stop="\n") for part in parts]
    found = await hand.all(calls)
    whole = await hand.complete(f"{start}Text: {' '.join(found)}\nSummary:", max_tokens=24, stop="\n")
    return {"summary": found, "whole": whole}


async def skeleton_of_thought(hand: Hand, topic: str) -> dict[str, Any]:
    question = _message("user", f"List three points about {topic}.")
    points = ""
    for number in (1, 2, 3):
        points += f"{number}. "
        points += await hand.chat([question, _message("assistant", points)], max_tokens=8, stop="\n") + "\n"
    start = [question, _message("assistant", points)]

    def sentence(number: int) -> Awaitable[str]:
        return hand.chat([*start, _message("user", f"Write a sentence about point {number}.")], max_tokens=20)

    return {"sentence": await hand.all([sentence(number) for number in (1, 2, 3)])}


async def role_play(hand: Hand, hero: str, place: str) -> dict[str, Any]:
    text = f"A play. {hero} meets a stranger at {place}.\n"
    found: dict[str, Any] = {}
    for turn in range(2):
        for speaker, name in ((hero, f"hero{turn}"), ("Stranger", f"stranger{turn}")):
            text += f"{speaker} ("
            found[f"{name}_mood"] = await hand.choose(text, ["smiling", "angry", "afraid"])
            text += found[f"{name}_mood"] + '): "'
            found[f"{name}_line"] = await hand.complete(text, max_tokens=12, stop=['"', "\n"])
            text += found[f"{name}_line"] + '"\n'
    return found


BY_HAND = {
    each.__name__: each
    for each in (
        multi_turn,
        few_shot,
        tree_of_thought,
        self_consistency,
        judge,
        extract_json,
        agent,
        map_reduce,
        skeleton_of_thought,
        role_play,
    )
}
