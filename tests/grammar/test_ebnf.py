"""EBNF in GBNF's dialect: exact where a lexer would be greedy, and honest about what is wrong."""

from __future__ import annotations

import pytest

from headrace.core.constraint import ConstraintKind
from headrace.core.errors import InvalidRequest
from tests.grammar.judging import matcher_for, takes

ARITHMETIC = r"""
# sums, one a line
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""

CASES = [
    (ARITHMETIC, ["x+1=2\n", "a = 3\n", "(a+b)*2= 5\nx=1\n"], ["x+1=2", "x+=2\n", "=1\n"]),
    ('root ::= "a" | "b"', ["a", "b"], ["", "ab"]),
    ('root ::= "a"{2,3} "b"?', ["aa", "aaab"], ["a", "aaaa"]),
    ('root ::= "a"{2}', ["aa"], ["a", "aaa"]),
    ('root ::= [^"\\\\]+ "\\""', ['x"', 'yz"'], ['"', "x"]),
    (r'root ::= "\x41" [\u00e9-\u00eb] "\\"', ["A\u00e9\\", "A\u00ea\\"], ["Ae\\"]),
    ("root ::= .", ["x", "\n"], ["", "xy"]),
    ('root ::= item-list\nitem-list ::= "[" (item ("," item)*)? "]"\nitem ::= "x"', ["[]", "[x]", "[x,x]"], ["[x,]"]),
    ('root ::= Root "b"\nRoot ::= "a"', ["ab"], ["a", "b"]),
    ('root ::= ("a" | )', ["", "a"], ["b"]),
    ('root ::= "don\'t" | "#no comment" # comment\n', ["don't", "#no comment"], ["#"]),
    ("root ::= [a-]", ["a", "-"], ["b"]),
    ('root ::=\n  "a"\n  | "b"', ["a", "b"], ["c"]),
]


@pytest.mark.parametrize(("grammar", "good", "bad"), CASES)
def test_a_grammar_takes_its_language(grammar: str, good: list[str], bad: list[str]) -> None:
    matcher = matcher_for(ConstraintKind.EBNF, grammar)
    assert [text for text in good if not takes(matcher, text)] == []
    assert [text for text in bad if takes(matcher, text)] == []


def test_g25_blanks_before_a_newline_leave_it_one() -> None:
    assert takes(matcher_for(ConstraintKind.EBNF, ARITHMETIC), "x+1=2\n")


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('root ::= "a" b', "the rule 'b' is not defined, at line 1, column 14"),
        ('root ::= "a"\nroot ::= "b"', "defined twice, at line 2, column 1"),
        ('start: "a"', "a rule begins with 'name ::=', at line 1"),
        ('begin ::= "a"', "no rule 'root ::='"),
        ('root ::= ("a"', "a parenthesis is not closed, at line 1, column 10"),
        ('root ::= "a', "this is not EBNF, at line 1, column 10"),
        ("root ::= []", "a character class is empty"),
        (r'root ::= "\q"', r"the escape \q is not known"),
        ('root ::= "a"{3,2}', "lower bound is above"),
        ('root ::= "a"{9999}', "at most 2000"),
        ("\n".join(f'r{index} ::= "a"' for index in range(2001)), "more than 2000 rules"),
    ],
)
def test_g11_what_is_wrong_is_said_with_its_place(grammar: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        matcher_for(ConstraintKind.EBNF, grammar)
    assert words in refusal.value.message
