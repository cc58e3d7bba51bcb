"""The element types a model file can hold: their names and how their elements are packed into bytes.

Being listed here means that a file with such tensors can be opened and its layout checked; which types
can be turned into float32 is ``quantization``'s knowledge.
"""

from __future__ import annotations

import enum


class TensorType(enum.Enum):
    """Elements are stored in blocks of ``block_size`` that take ``block_bytes`` each.

    Names and sizes are those of the safetensors format and of GGUF's ggml types; plain types have blocks
    of one element.
    """

    block_size: int
    block_bytes: int

    BOOL = ("BOOL", 1, 1)
    U8 = ("U8", 1, 1)
    I8 = ("I8", 1, 1)
    F8_E4M3 = ("F8_E4M3", 1, 1)
    F8_E5M2 = ("F8_E5M2", 1, 1)
    U16 = ("U16", 1, 2)
    I16 = ("I16", 1, 2)
    F16 = ("F16", 1, 2)
    BF16 = ("BF16", 1, 2)
    U32 = ("U32", 1, 4)
    I32 = ("I32", 1, 4)
    F32 = ("F32", 1, 4)
    U64 = ("U64", 1, 8)
    I64 = ("I64", 1, 8)
    F64 = ("F64", 1, 8)

    Q4_0 = ("Q4_0", 32, 18)
    Q4_1 = ("Q4_1", 32, 20)
    Q5_0 = ("Q5_0", 32, 22)
    Q5_1 = ("Q5_1", 32, 24)
    Q8_0 = ("Q8_0", 32, 34)
    Q2_K = ("Q2_K", 256, 84)
    Q3_K = ("Q3_K", 256, 110)
    Q4_K = ("Q4_K", 256, 144)
    Q5_K = ("Q5_K", 256, 176)
    Q6_K = ("Q6_K", 256, 210)
    IQ1_S = ("IQ1_S", 256, 50)
    IQ1_M = ("IQ1_M", 256, 56)
    IQ2_XXS = ("IQ2_XXS", 256, 66)
    IQ2_XS = ("IQ2_XS", 256, 74)
    IQ2_S = ("IQ2_S", 256, 82)
    IQ3_XXS = ("IQ3_XXS", 256, 98)
    IQ3_S = ("IQ3_S", 256, 110)
    IQ4_NL = ("IQ4_NL", 32, 18)
    IQ4_XS = ("IQ4_XS", 256, 136)
    TQ1_0 = ("TQ1_0", 256, 54)
    TQ2_0 = ("TQ2_0", 256, 66)
    MXFP4 = ("MXFP4", 32, 17)

    def __init__(self, label: str, block_size: int, block_bytes: int) -> None:
        self.label = label
        self.block_size = block_size
        self.block_bytes = block_bytes

    def num_bytes(self, num_elements: int) -> int:
        """Bytes of ``num_elements``, which must be whole blocks."""
        num_blocks, rest = divmod(num_elements, self.block_size)
        assert rest == 0
        return num_blocks * self.block_bytes
