"""Ten programs of many calls, each a pattern that applications are made of.

Run one on the default model: ``python -m examples.programs tree_of_thought``, or on a running server with
``--url http://127.0.0.1:8000``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace import program as sgl

TOOLS = ("add", "multiply", "answer")
EXAMPLES = (
    ("the soup was cold and late", "negative"),
    ("we laughed from start to end", "positive"),
    ("it broke on the second day", "negative"),
    ("the staff found my lost ring", "positive"),
    ("never again", "negative"),
    ("worth every minute of the drive", "positive"),
)
NUM_IDEAS = 5
TRAITS = ("ideas", "organization", "voice", "word choice", "fluency", "conventions")
"""What teachers grade writing by."""


@sgl.function
def multi_turn(s, first, second):
    """A conversation of two questions."""
    s += sgl.system("You are a helpful assistant. Answer in one sentence.")
    s += sgl.user(first)
    s += sgl.assistant(sgl.gen("first_answer", max_tokens=24))
    s += sgl.user(second)
    s += sgl.assistant(sgl.gen("second_answer", max_tokens=24))


@sgl.function
def few_shot(s, review):
    """Examples before a question: what a batch of such calls shares is computed once."""
    s += "Say whether each review is positive or negative.\n\n"
    for text, label in EXAMPLES:
        s += f"Review: {text}\nLabel: {label}\n\n"
    s += f"Review: {review}\nLabel:" + sgl.gen("label", max_tokens=3, stop="\n")


@sgl.function
def tree_of_thought(s, question):
    """Several ideas at once, each judged in a branch of its own; the first that is found promising is worked out.

    Yao et al., "Tree of Thoughts" (2023), with five thoughts at one level.
    """
    s += sgl.system("You solve problems step by step.")
    s += sgl.user(f"{question} Give one idea in two sentences.")
    branches = s.fork(NUM_IDEAS)
    for number, branch in enumerate(branches):
        branch += sgl.assistant(f"Idea {number + 1}: " + sgl.gen("idea", max_tokens=40))
        branch += sgl.user("Will this idea lead to the answer? Say yes or no.")
        branch += sgl.assistant(sgl.select("verdict", choices=["yes", "no"]))
    verdicts = [branch["verdict"] for branch in branches]
    best = branches[verdicts.index("yes") if "yes" in verdicts else 0]
    best += sgl.user("Work it out and give the answer.")
    best += sgl.assistant(sgl.gen("answer", max_tokens=32))
    return best["answer"]


@sgl.function
def self_consistency(s, question):
    """The same question answered several times with chance; the commonest answer counts."""
    s += f"Question: {question}\nThink briefly, then write the number.\n"
    branches = s.fork(4)
    for number, branch in enumerate(branches):
        branch += "Answer:" + sgl.gen("answer", max_tokens=8, temperature=0.8, seed=number, stop="\n")
    branches.join()
    answers = s["answer"]
    return max(answers, key=answers.count)


@sgl.function
def judge(s, essay):
    """Judges of one essay side by side, a grade, and then praise or advice, whichever the grade asks for."""
    s += sgl.system("You judge essays.")
    s += sgl.user_begin() + f"Here is an essay.\n\n{essay}\n\n"
    branches = s.fork(len(TRAITS))
    for trait, branch in zip(TRAITS, branches, strict=True):
        branch += f"Judge its {trait} in two sentences." + sgl.user_end()
        branch += sgl.assistant(sgl.gen("judgement", max_tokens=40))
    branches.join()
    judgements = "\n".join(f"{name}: {text}" for name, text in zip(TRAITS, s["judgement"], strict=True))
    s += f"Judges said:\n{judgements}\n\nIs the essay good or bad?" + sgl.user_end()
    s += sgl.assistant_begin()
    s += "It is "
    s.branch(sgl.select("grade", choices=["good", "bad"]), {"good": _praise, "bad": _advise})
    s += sgl.assistant_end()


def _praise(s):
    s += ". What I liked most: " + sgl.gen("words", max_tokens=24, stop="\n")


def _advise(s):
    s += ". What would make it better: " + sgl.gen("words", max_tokens=24, stop="\n")


@sgl.function
def extract_json(s, text):
    """A JSON object whose keys are the program's and whose values are the model's."""
    s += f"Text: {text}\nThe person in the text as JSON:\n"
    s += '{"name": "' + sgl.gen("name", max_tokens=8, stop='"') + '", '
    s += '"job": "' + sgl.gen("job", max_tokens=8, stop='"') + '", '
    s += '"mood": "' + sgl.select("mood", choices=["glad", "sad", "calm"]) + '"}'


@sgl.function
def agent(s, question):
    """A loop of a model that chooses tools and a program that runs them."""
    s += sgl.system(f"You use one tool at a time: {', '.join(TOOLS)}.")
    s += sgl.user(question)
    for step in range(2):
        s += sgl.assistant_begin() + "Tool: " + sgl.select(f"tool{step}", choices=TOOLS) + "\nNumbers: "
        s += sgl.gen(f"numbers{step}", max_tokens=8, stop="\n") + sgl.assistant_end()
        if s[f"tool{step}"] == "answer":
            break
        s += sgl.user(f"Result: {use_tool(s[f'tool{step}'], s[f'numbers{step}'])}")
    s += sgl.assistant("The answer is " + sgl.gen("answer", max_tokens=12))


def use_tool(tool: str, numbers: str) -> int:
    """What a tool makes of the numbers in a text."""
    found = [int(word) for word in "".join(c if c.isascii() and c.isdigit() else " " for c in numbers).split()]
    if tool == "add":
        return sum(found)
    product = 1
    for number in found:
        product *= number
    return product


@sgl.function
def map_reduce(s, parts: Sequence[str]):
    """Summaries of the parts side by side, then one of them all."""
    s += "Summarise what you are given in a few words.\n\n"
    branches = s.fork(len(parts))
    for part, branch in zip(parts, branches, strict=True):
        branch += f"Text: {part}\nSummary:" + sgl.gen("summary", max_tokens=16, stop="\n")
    branches.join()
    s += "Text: " + " ".join(s["summary"]) + "\nSummary:" + sgl.gen("whole", max_tokens=24, stop="\n")


@sgl.function
def skeleton_of_thought(s, topic):
    """An outline first; then its points are written out side by side."""
    s += sgl.user(f"List three points about {topic}.")
    s += sgl.assistant_begin()
    for number in (1, 2, 3):
        s += f"{number}. " + sgl.gen(f"point{number}", max_tokens=8, stop="\n") + "\n"
    s += sgl.assistant_end()
    branches = s.fork(3)
    for number, branch in enumerate(branches, start=1):
        branch += sgl.user(f"Write a sentence about point {number}.")
        branch += sgl.assistant(sgl.gen("sentence", max_tokens=20))
    branches.join()
    return "\n".join(s["sentence"])


@sgl.function
def role_play(s, hero, place):
    """Two characters take turns; what each may feel is the program's choice of words."""
    s += f"A play. {hero} meets a stranger at {place}.\n"
    for turn in range(2):
        for speaker, name in ((hero, f"hero{turn}"), ("Stranger", f"stranger{turn}")):
            s += f"{speaker} (" + sgl.select(f"{name}_mood", choices=["smiling", "angry", "afraid"]) + '): "'
            s += sgl.gen(f"{name}_line", max_tokens=12, stop=['"', "\n"]) + '"\n'


ESSAY = "Cities should plant more trees. Shade cools streets, roots hold rain, and people walk more where it is green."

ARGUMENTS: Mapping[str, Mapping[str, object]] = {
    "multi_turn": {"first": "What is the capital of France?", "second": "And of Italy?"},
    "few_shot": {"review": "I would buy it again tomorrow"},
    "tree_of_thought": {"question": "How could a small town have less traffic?"},
    "self_consistency": {"question": "A box holds 12 eggs and 5 break. How many are left?"},
    "judge": {"essay": ESSAY},
    "extract_json": {"text": "Ada, the baker, hummed while the bread rose."},
    "agent": {"question": "I bought 3 pens and 4 books. How many things is that?"},
    "map_reduce": {"parts": ["The sea was calm all day.", "At night a storm came.", "By morning two boats were gone."]},
    "skeleton_of_thought": {"topic": "tea"},
    "role_play": {"hero": "Mara", "place": "the harbour"},
}
"""Something to run each program with."""

PROGRAMS: Mapping[str, sgl.Function] = {
    each.name: each
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
