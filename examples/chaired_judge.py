"""Judges of one essay with a chair who thinks before grading, while the letter that follows is being written already.

The grade is found in a fork and is no part of the letter, so nothing in the letter waits for it but which letter it is.
Where the machine has room the likelier one is begun meanwhile; the program gives the same either way.
Run it on the default model: ``python -m examples.chaired_judge``.
"""

from __future__ import annotations

from headrace import program as sgl

DIMENSIONS = ("clarity", "originality", "evidence")


@sgl.function
def chaired_judge(s, essay):
    """Three judges side by side, a chair who weighs what they said, and a letter that depends on the grade."""
    s += sgl.system("You judge essays.")
    s += sgl.user(f"Here is an essay.\n\n{essay}")
    s += sgl.assistant("I have read it.")
    judges = s.fork(len(DIMENSIONS))
    for dimension, judge in zip(DIMENSIONS, judges, strict=True):
        judge += sgl.user(f"Judge its {dimension} in a few words.")
        judge += sgl.assistant(sgl.gen("judgement", max_tokens=16, stop="\n"))
    for dimension, judge in zip(DIMENSIONS, judges, strict=True):
        s += sgl.user(f"A judge of {dimension} said: " + judge.ref("judgement"))
        s += sgl.assistant("I have noted it.")
    chair = s.fork(1)[0]
    chair += sgl.user("Weigh what they said at length, then say whether the essay is good or bad.")
    chair += sgl.assistant(
        sgl.gen("thoughts", min_tokens=48, max_tokens=64) + "\nThe essay is " + sgl.select("grade", ["good", "bad"])
    )
    s += sgl.user("Write to the author.")
    s += sgl.assistant_begin() + "Dear author, "
    s.branch(chair.ref("grade"), {"good": praise, "bad": advise})
    s += sgl.assistant_end()


def praise(s):
    s += "what we liked most is " + sgl.gen("letter", max_tokens=64)


def advise(s):
    s += "what would make your essay better is " + sgl.gen("letter", max_tokens=64)


ESSAYS = tuple(
    f"Cities should plant more {what}. Shade cools streets, roots hold rain, and people walk more where it is green."
    for what in ("trees", "hedges", "gardens", "orchards", "vines", "meadows", "reeds", "palms")
)


def main() -> None:
    from headrace import LLM

    with LLM() as llm:
        state = llm.run(chaired_judge, ESSAYS[0], temperature=0)
        print(state.text())
        print(state.usage)


if __name__ == "__main__":
    main()
