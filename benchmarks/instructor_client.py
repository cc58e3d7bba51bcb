"""``instructor`` against a running server, unchanged: typed answers in each of its modes for such servers.

It is no test of the suite because it does not install beside the latest ``openai``. In an environment of its own:

    pip install instructor
    python benchmarks/instructor_client.py http://127.0.0.1:8000/v1
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated

import instructor
import openai
from pydantic import BaseModel, ConfigDict, Field


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    """What is asked for, and nothing else: a small model would invent further properties without end."""

    model_config = ConfigDict(extra="forbid")

    x: Annotated[int, Field(ge=0, le=9)]
    colour: Colour
    label: Annotated[str, Field(max_length=12)]


MODES = (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT)


def main() -> int:
    url = sys.argv[1]
    for mode in MODES:
        with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as plain:
            client = instructor.from_openai(plain, mode=mode)
            point = client.chat.completions.create(
                model=plain.models.list().data[0].id,
                response_model=Point,
                messages=[{"role": "user", "content": "A red point at 3, please."}],
                max_tokens=200,
                max_retries=0,
            )
            assert isinstance(point, Point)
            print(f"{mode.value}: {point!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
