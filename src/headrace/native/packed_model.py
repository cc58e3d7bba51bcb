"""All weights of a model in the kernels' layout, wherever they came from."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.native.operations import WeightFormat
from headrace.native.packing import PackedWeight

Float32Array = NDArray[np.float32]

_GATHERED = "embedding"


@dataclass(frozen=True, slots=True, eq=False)
class PackedModel:
    """``matrices`` packed, ``vectors`` (norms, biases, rope factors) in float32."""

    matrices: Mapping[str, PackedWeight]
    vectors: Mapping[str, Float32Array]

    @property
    def formats(self) -> str:
        """The matrices' formats, the one with most values first: ``"int4+int8"``."""
        sizes: dict[WeightFormat, int] = {}
        for matrix in self.matrices.values():
            sizes[matrix.format] = sizes.get(matrix.format, 0) + matrix.num_rows * matrix.num_columns
        return "+".join(dict.fromkeys(f.label for f in sorted(sizes, key=lambda f: -sizes[f])))

    @property
    def num_bytes(self) -> int:
        return sum(m.data.nbytes for m in self.matrices.values()) + sum(v.nbytes for v in self.vectors.values())

    def copied(self, threads: int) -> PackedModel:
        """The same in memory of its own, side by side, as products read it fastest. Costs a copy of all weights."""
        shapes = [(m.format, m.num_rows, m.num_columns) for m in self.matrices.values()]
        matrices = PackedWeight.side_by_side(shapes)
        with ThreadPoolExecutor(threads, "copy") as pool:
            for _ in pool.map(lambda to, m: np.copyto(to.data, m.data), matrices, self.matrices.values()):
                pass
        return PackedModel(dict(zip(self.matrices, matrices, strict=True)), self.vectors)

    @property
    def multiplied(self) -> dict[str, PackedWeight]:
        """The matrices that take part in products: an embedding with a head beside it is only looked up."""
        is_looked_up = "head" in self.matrices
        return {name: m for name, m in self.matrices.items() if not (is_looked_up and name == _GATHERED)}
