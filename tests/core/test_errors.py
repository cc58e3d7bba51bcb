"""The exception tree is what its docstring draws, and carries what its catchers need."""

from __future__ import annotations

import inspect

import pytest

from headrace.core import errors
from headrace.core.errors import ConfigError, HeadraceError, InvalidRequest, Overloaded


def test_every_error_is_in_the_tree_and_in_the_drawing() -> None:
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__]
    assert len(classes) > 5
    for cls in classes:
        assert issubclass(cls, HeadraceError)
        assert cls.__name__ in (errors.__doc__ or "")


def test_an_error_shows_its_message_and_names_what_was_wrong() -> None:
    assert str(InvalidRequest("n is 0", "n")) == "n is 0"
    assert InvalidRequest("n is 0", "n").param == "n"
    assert InvalidRequest("bad body").param is None
    assert ConfigError("bad port", "port").field == "port"
    assert Overloaded("busy", retry_after_s=2.5).retry_after_s == 2.5


def test_all_can_be_caught_as_one() -> None:
    with pytest.raises(HeadraceError) as caught:
        raise Overloaded("busy", 1.0)
    assert caught.value.message == "busy"
