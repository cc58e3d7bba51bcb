"""The ``headrace`` command: finds the verb, runs it, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 the work failed, 2 wrong usage or configuration, 130 interrupted. Every verb lives in
its own file and is imported only when it is called, so that ``headrace --help`` starts fast.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.core.errors import ConfigError, HeadraceError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

USAGE = "usage: headrace [--debug] VERB ..."


def _serve(argv: Sequence[str]) -> int:
    from headrace.cli import serve

    return serve.main(argv)


def _run(argv: Sequence[str]) -> int:
    from headrace.cli import run

    return run.main(argv)


def _chat(argv: Sequence[str]) -> int:
    from headrace.cli import chat

    return chat.main(argv)


def _models(argv: Sequence[str]) -> int:
    from headrace.cli import models

    return models.main(argv)


def _compile(argv: Sequence[str]) -> int:
    from headrace.cli import compile as compile_verb

    return compile_verb.main(argv)


def _bench(argv: Sequence[str]) -> int:
    from headrace.cli import bench

    return bench.main(argv)


def _grammar(argv: Sequence[str]) -> int:
    from headrace.cli import grammar

    return grammar.main(argv)


def _schema(argv: Sequence[str]) -> int:
    from headrace.cli import schema

    return schema.main(argv)


def _why(argv: Sequence[str]) -> int:
    from headrace.cli import why

    return why.main(argv)


def _simulate(argv: Sequence[str]) -> int:
    from headrace.cli import simulate

    return simulate.main(argv)


def _plan_memory(argv: Sequence[str]) -> int:
    from headrace.cli import plan_memory

    return plan_memory.main(argv)


def _doctor(argv: Sequence[str]) -> int:
    from headrace.cli import doctor

    return doctor.main(argv)


def _program(argv: Sequence[str]) -> int:
    from headrace.cli import program

    return program.main(argv)


def _version(argv: Sequence[str]) -> int:
    from headrace.cli import version

    return version.main(argv)


@dataclass(frozen=True, slots=True)
class Verb:
    """A subcommand: its name, its line in the help, and the function that imports and runs it."""

    name: str
    help: str
    main: Callable[[Sequence[str]], int]


VERBS = (
    Verb("serve", "serve a model over HTTP with OpenAI's API", _serve),
    Verb("run", "answer one prompt on the terminal", _run),
    Verb("chat", "talk to a model on the terminal", _chat),
    Verb("models", "list, fetch, show and remove models", _models),
    Verb("compile", "pack, tune and check a model into a folder that starts fast", _compile),
    Verb("bench", "measure servers and engines, and compare what was measured", _bench),
    Verb("grammar", "explain a grammar as an automaton", _grammar),
    Verb("schema", "check what of a JSON schema is enforced", _schema),
    Verb("why", "say where the time of a request went", _why),
    Verb("simulate", "play a trace to the scheduler on a virtual clock", _simulate),
    Verb("plan-memory", "say what a model would take of this machine's memory", _plan_memory),
    Verb("doctor", "say what would run on this machine, and why", _doctor),
    Verb("program", "show the graph of a program of many calls", _program),
    Verb("version", "print versions", _version),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words, is_debug = _take_debug(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except HeadraceError as error:
        if is_debug:
            traceback.print_exc()
        print(f"error: {error.message}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILURE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has gone: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE


def _dispatch(words: Sequence[str]) -> int:
    if not words:
        print(_help(), file=sys.stderr)
        return EXIT_USAGE
    name = words[0]
    if name in ("-h", "--help", "help"):
        print(_help())
        return 0
    if name in ("-V", "--version"):
        return _version([])
    for verb in VERBS:
        if verb.name == name:
            return verb.main(words[1:])
    from headrace.core.settings import suggestion

    hint = suggestion(name, [verb.name for verb in VERBS])
    raise ConfigError(f"unknown verb {name!r}{hint or '; headrace --help lists them'}")


def _take_debug(argv: Sequence[str]) -> tuple[list[str], bool]:
    """The words without ``--debug``, and whether it was there; words after ``--`` are left alone."""
    end = argv.index("--") if "--" in argv else len(argv)
    words = [word for word in argv[:end] if word != "--debug"]
    return [*words, *argv[end:]], len(words) < end


def _help() -> str:
    width = max(len(verb.name) for verb in VERBS)
    lines = [USAGE, "", "Serve and use language models.", "", "verbs:"]
    lines += [f"  {verb.name:<{width}}  {verb.help}" for verb in VERBS]
    lines += ["", "headrace VERB --help shows a verb's flags. --debug shows tracebacks."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
