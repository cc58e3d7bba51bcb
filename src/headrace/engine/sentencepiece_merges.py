"""From the scored pieces of a SentencePiece BPE model to a list of merges.

Owns the translation between two forms of byte-pair encoding. SentencePiece stores scores: of all neighbours
whose concatenation is a piece, the pair making the highest-scored piece is merged first (Kudo and Richardson,
"SentencePiece", EMNLP 2018). Merge lists store pairs in order of preference. Listing, for every piece in
falling order of score, all its splits into two pieces gives the same tokens; ties between splits of one piece
go to the longer left part.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.core.errors import ConfigError

MAX_PIECE_CHARS = 1024
"""Splitting costs the square of a piece's length; real vocabularies stay below 200 characters."""


def derive_merges(score_of: Mapping[str, float], field: str) -> list[tuple[str, str]]:
    """Return the merges of pieces with their scores, best first.

    Raises ``ConfigError`` naming ``field`` for a piece too long to be real. Costs about 3 us per piece.
    """
    longest = max(score_of, key=len, default="")
    if len(longest) > MAX_PIECE_CHARS:
        raise ConfigError(f"{field} has a piece of {len(longest)} characters; the limit is {MAX_PIECE_CHARS}", field)
    merges = []
    for piece in sorted(score_of, key=score_of.__getitem__, reverse=True):
        for cut in range(len(piece) - 1, 0, -1):
            left = piece[:cut]
            if left in score_of and (right := piece[cut:]) in score_of:
                merges.append((left, right))
    return merges
